"""The command `python -m app.search`."""

import sys

from app.api.shell import main

sys.exit(main(sys.argv[1:]))
