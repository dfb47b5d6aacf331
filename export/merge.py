"""The command line `python -m export.merge`; see `export/build/merge.py`."""

import sys

from export.build.merge import main

if __name__ == "__main__":
    sys.exit(main())
