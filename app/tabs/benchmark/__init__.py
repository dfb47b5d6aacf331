"""The Benchmark tab: what every method reached and cost, and measuring it again."""

from app.tabs.benchmark.tab import build

__all__ = ["build"]
