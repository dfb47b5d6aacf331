"""Builds packs: ONNX export, parity with torch, training runs and the authors' checkpoints."""
