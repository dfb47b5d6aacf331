"""The command line `python -m export.hub`; see `export/hub/transfer.py`."""

import sys

from export.hub.transfer import main

if __name__ == "__main__":
    sys.exit(main())
