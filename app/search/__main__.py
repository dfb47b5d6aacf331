"""The command `python -m polyview search`."""

import sys

from polyview.app.api.shell import main

sys.exit(main(sys.argv[1:]))
