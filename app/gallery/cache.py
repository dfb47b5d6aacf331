"""The folder that keeps what need not be fetched or computed again."""

import logging
import os
import sys
import tempfile
from pathlib import Path

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Where this user's caches lie: POLYVIEW_CACHE, or the platform's usual place.

    Where that cannot be written, a folder for this run alone takes its place.
    """
    folder = _usual_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        _log.warning("the cache %s cannot be written, nothing is kept: %s", folder, error)
        return Path(tempfile.mkdtemp(prefix="polyview-"))


def _usual_folder() -> Path:
    if chosen := os.environ.get("POLYVIEW_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData/Local")) / "polyview"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/polyview"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polyview"
