"""The Compare tab: one query through several methods, side by side."""
