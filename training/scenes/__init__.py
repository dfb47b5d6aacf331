"""The scenes world: rendered images with captions and complete ground truth."""
