"""The command line `python -m export.merge`; see `export/build/merge.py`."""

from __future__ import annotations

import sys

from export.build.merge import main

if __name__ == "__main__":
    sys.exit(main())
