"""Data: captioned images of every kind as one split, and the batches made of it."""
