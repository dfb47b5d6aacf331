"""Packs: which are open, jobs beside the app, measured numbers, what the app says of itself."""
