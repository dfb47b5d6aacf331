"""The command line `python -m export.official`; see `export/build/official/convert.py`."""

import sys

from export.build.official.convert import main

if __name__ == "__main__":
    sys.exit(main())
