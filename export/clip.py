"""The command line `python -m export.clip`; see `export/build/clip.py`."""

from __future__ import annotations

import sys

from export.build.clip import main

if __name__ == "__main__":
    sys.exit(main())
