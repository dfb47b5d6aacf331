"""The training loop: configurations, run folders, trainers and sweeps."""
