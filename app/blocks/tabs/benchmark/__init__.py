"""The Benchmark tab: what every method reached and cost, and measuring it again."""
