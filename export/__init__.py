"""From trained weights to a pack, and from a pack to features, views and scores.

A pack is a folder (or a Hub repository with the same files) with everything needed to search with
trained models; see `export/pack/reading.py`.
"""

# Must precede every import of onnxruntime: torch loads the CUDA libraries that it needs.
import torch  # noqa: F401
