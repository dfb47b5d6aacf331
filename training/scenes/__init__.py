"""The scenes world: rendered images with captions and exact truth."""
