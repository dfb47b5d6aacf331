"""Training and evaluation: everything that makes a pack's weights and its numbers."""
