"""The Search tab: words to pictures, a picture to captions and pictures, and a look inside."""

from app.tabs.search.tab import build

__all__ = ["build"]
