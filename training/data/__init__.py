"""Data: splits of captioned images, clips and features, and batches drawn from them."""
