"""Builds packs from trained weights, and computes features, views and scores with packs.

A pack is a folder (or a Hub repository with the same files) with everything needed to search with
trained models; see `export/pack/reading.py`.
"""

# Must precede every import of onnxruntime: torch loads the CUDA libraries that onnxruntime needs.
import torch  # noqa: F401
