"""The command `python -m app.search`."""

import sys

from app.blocks.server.imports import quick_imports

with quick_imports():
    from app.api.shell import main

sys.exit(main(sys.argv[1:]))
