"""Starts the app: `python app/main.py [--pack ...] [--gallery DIR] [--device ...] [--host ...]`.

Also the `app_file` of a Hugging Face Space.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Runs the app until it is stopped.

    Returns:
        0 after a normal end, 1 where it could not start; the reason is printed as a sentence.
    """
    # Before gradio and huggingface_hub are imported, which read these once.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # Found first, so that `models` is the folder beside `app` and never a file within it.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

    from PIL import Image

    from app import interface
    from app.cache import cache_folder
    from app.settings import Settings
    from app.shelf import Shelf
    from app.terminal import ProgressBar

    logging.basicConfig(level=logging.WARNING, format="polyview: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # app/pictures.py has its own limit and says so in a sentence.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    settings = Settings.from_argv(argv)
    cache = cache_folder()
    try:
        shelf = Shelf(settings, cache)
        blocks = interface.build(shelf)
        interface.launch(blocks, settings, cache)
        # Only now, so that the first page does not wait for processors busy with pictures.
        shelf.first.index.start(ProgressBar())
        blocks.block_thread()
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
