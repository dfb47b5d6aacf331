"""The command line `python -m export.to_onnx`; see `export/build/to_onnx.py`."""

import sys

from export.build.to_onnx import main

if __name__ == "__main__":
    sys.exit(main())
