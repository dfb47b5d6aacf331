"""The command line `python -m export.clip`; see `export/build/clip.py`."""

import sys

from export.build.clip import main

if __name__ == "__main__":
    sys.exit(main())
