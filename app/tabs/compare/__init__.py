"""The Compare tab: one query through several methods, side by side."""

from app.tabs.compare.tab import build

__all__ = ["build"]
