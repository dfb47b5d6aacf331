"""The training loop: configurations, run folders and trainers."""
