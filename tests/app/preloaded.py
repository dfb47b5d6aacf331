"""What the app imports. Nothing here starts a thread, so a process that has it can be copied."""

import os

from app.blocks.server.imports import quick_imports

# as `main` and the tests set them, before what reads them once is imported
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
with quick_imports():
    pass
