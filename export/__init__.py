"""From trained weights to a pack, and from a pack to features, views and scores.

A pack is a folder (or a Hub repository with the same files) that holds everything needed to search
with what was trained; `export/pack/reading.py` says what is in it.
"""

# Before onnxruntime, whichever module asks for it first: torch brings the CUDA libraries that
# onnxruntime then finds already loaded.
import torch  # noqa: F401
