"""Starts the app: `python app/main.py [--pack ...] [--gallery DIR] [--device ...] [--mcp] ...`.

Also the `app_file` of a Hugging Face Space.
"""

import gc
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

NO_MCP = (
    'the package mcp, which --mcp needs, is not installed; run pip install "gradio[mcp]", '
    "or start without --mcp"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the app until it is stopped.

    Args:
        argv: the arguments; None takes the program's.

    Returns:
        0 after a normal end, 1 where it could not start; the reason is printed as a sentence.
    """
    # Before gradio and huggingface_hub are imported, which read these once.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # By default gradio remembers 10,000 events and sums them up after each one, for a dashboard
    # that `app/blocks/server/door.py` keeps closed.
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**12)
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    # Found first, so that `models` is the folder beside `app` and never a file within it.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

    from app.blocks.server.imports import quick_imports

    with quick_imports():
        from app.settings import Settings

    settings = Settings.from_argv(sys.argv[1:] if argv is None else argv)
    if settings.mcp and importlib.util.find_spec("mcp") is None:
        print(f"polyview: {NO_MCP}", file=sys.stderr)
        return 1

    from app.blocks.server.memory import few_arenas, keep_trimmed
    from app.blocks.server.short_lines import ShortLines
    from app.gallery.cache import cache_folder

    few_arenas()

    # gradio writes what failed with the values that were sent.
    sys.stdout = cast(TextIO, ShortLines(sys.stdout))
    sys.stderr = cast(TextIO, ShortLines(sys.stderr))
    cache = cache_folder()
    # A folder of the app's own, which it keeps small; gradio's usual one is shared.
    os.environ.setdefault("GRADIO_TEMP_DIR", str(cache / "uploads"))

    # Only now: these take seconds, and a mistake in the command line should not.
    with quick_imports(settings.mcp):
        from PIL import Image

        from app.blocks import page as interface
        from app.blocks.api.http import http_api
        from app.blocks.server import zerogpu
        from app.gallery.terminal import ProgressBar
        from app.packs.open_packs import OpenPacks

    logging.basicConfig(level=logging.WARNING, format="polyview: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # app/gallery/images.py has its own limit and says so in a sentence.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    try:
        packs = OpenPacks(settings, cache)
        if settings.pack is None and settings.gallery is not None:
            title = packs.first.info.title
            print(f"polyview: the gallery is searched with {title}; --pack names another pack")
        zerogpu.declare()
        blocks = interface.build(packs)
        interface.launch(blocks, http_api(packs), settings, cache)
        # Only now, so that the first page does not wait for processors busy with pictures.
        packs.first.index.start(ProgressBar())
        keep_trimmed(packs.first.index.wait)
        gc.freeze()  # what the start made stays, and is not looked through for garbage
        blocks.block_thread()
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
