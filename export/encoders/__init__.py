"""Encoders of images and texts: our own, those of packs, and published ones."""
