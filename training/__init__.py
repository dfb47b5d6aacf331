"""Training and evaluation: produces a pack's weights and metrics."""
