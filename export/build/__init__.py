"""From a checkpoint to a pack: ONNX graphs, parity, merging, CLIP, the authors' checkpoints."""
