"""The Models tab: what is loaded, what it reached, where it runs, and loading another pack."""
