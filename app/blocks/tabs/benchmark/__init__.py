"""The Benchmark tab: what every method reached and cost."""
