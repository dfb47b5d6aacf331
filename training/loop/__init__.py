"""The training loop: configurations, run folders, and what one run trains."""
