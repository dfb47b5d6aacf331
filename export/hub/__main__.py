"""The command line `python -m export.hub`; see `export/hub/transfer.py`."""

from __future__ import annotations

import sys

from export.hub.transfer import main

if __name__ == "__main__":
    sys.exit(main())
