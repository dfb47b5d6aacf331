"""The Views tab: one picture through a method's views, the view lens and the collapse meter."""

from app.tabs.views.tab import build

__all__ = ["build"]
