"""The scenes world: rendered pictures with captions and exact truth."""
