"""The command `python -m app.search`."""

import sys

from polyview.app.api.shell import main

sys.exit(main(sys.argv[1:]))
