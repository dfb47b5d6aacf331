"""Starts the app: `python app/main.py`. This file is also the `app_file` of a Hugging Face Space.

Slow imports are deferred, so that errors in the command line are reported at once.
"""

import atexit
import gc
import importlib.util
import logging
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path

NO_MCP = '--mcp needs a package that is not installed; run: pip install "gradio[mcp]"'
_SWEEP_SECONDS = 60.0  # interval between deletions of unused uploads
_MAX_LINE = 1000  # characters per log line


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the app until it is stopped; if it cannot start, prints the reason and returns 1."""
    # set before importing gradio and huggingface_hub, which read these variables once
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # by default gradio keeps 10,000 events and summarises them after each one
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**12)
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    from polyview.app.settings import Settings

    settings = Settings.from_argv(sys.argv[1:] if argv is None else argv)
    if settings.mcp and importlib.util.find_spec("mcp") is None:
        print(f"polyview: {NO_MCP}", file=sys.stderr)
        return 1
    gc.disable()  # importing thousands of modules is faster without garbage collection
    from PIL import Image

    from polyview.app.gallery.indexing import ProgressLine
    from polyview.app.gallery.store import cache_folder
    from polyview.app.packs.state import AppState
    from polyview.app.server import build, launch

    handler = logging.StreamHandler()
    handler.setFormatter(OneLineFormatter("polyview: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # app/gallery/images.py limits the pixels of an image, with a better message
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    try:
        state = AppState(settings, cache_folder())
        if settings.pack is None and settings.gallery is not None:
            title = state.first.info.title
            print(f"polyview: searching the gallery with {title}; choose another pack with --pack")
        declare_zerogpu()
        # Skip the shutdown of the interpreter, in which torch aborts with "terminate called" if a
        # thread is still computing. Exit functions that are registered later run before this one.
        atexit.register(os._exit, 0)
        launch(build(settings, state), settings)
    except (ValueError, OSError) as error:
        atexit.unregister(os._exit)
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()  # exclude the objects made so far, which are permanent, from garbage collection
    # `put` is safe in a signal handler; later signals, which `make` may send, have no effect
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda number, _: signals.put(number))
    # started last, so that reading images does not delay the first page
    state.first.index.start(ProgressLine())
    threading.Thread(target=state.first.make_thumbnails, daemon=True).start()
    while True:
        try:
            signals.get(timeout=_SWEEP_SECONDS)
            break
        except queue.Empty:
            state.sweep()
    print("polyview: stopped", file=sys.stderr)
    state.close()
    return 0


class OneLineFormatter(logging.Formatter):
    """Formats each message as one line of limited length, because it may quote a client."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line; unprintable characters become "?"."""
        line = " | ".join(super().format(record).splitlines())
        return "".join(c if c.isprintable() else "?" for c in line[:_MAX_LINE])


def declare_zerogpu() -> None:
    """Declares a GPU function on ZeroGPU, which stops apps that declare none.

    The function is not called: a GPU request takes seconds, a search on the CPU takes milliseconds.
    """
    from polyview.export.sessions import on_zerogpu

    if not on_zerogpu():
        return
    import spaces  # installed only on Spaces
    import torch

    @spaces.GPU
    def gpu_name() -> str:
        """Returns the name of the GPU that runs the function."""
        return torch.cuda.get_device_name()


if __name__ == "__main__":
    # in a clone, the package `polyview` is not installed, but is a folder next to `app`
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    sys.exit(main())
