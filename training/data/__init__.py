"""Data: splits of captioned images of every kind, and batches drawn from them."""
