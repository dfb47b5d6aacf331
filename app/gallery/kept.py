"""Clusters of a large gallery on the disk, so that the next start need not find them again."""

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from app.gallery.clusters import Clusters
from app.gallery.rows import Snapshot
from models.files import sha256_of

_VERSION = 1  # counts up when clusters are found or written in another way

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptClusters:
    """The place of one method's clusters: a file of FAISS, and a JSON file about it, written last.

    What fails here costs only time: clusters that are not there, were made of something else, or
    are not as they were written, are found again.

    Args:
        folder: made when it is first used.
        space: whose views are clustered, see `app.gallery.embedding_cache`.
        contents: stands for the items, in the order of the gallery.
    """

    folder: Path
    space: str
    contents: str

    def load(self, there: Snapshot) -> tuple[Clusters, float] | None:
        """The clusters of these items, and the recall that was measured with them."""
        try:
            about = json.loads(self._file("json").read_text())
            if (about["version"], about["contents"]) != (_VERSION, self.contents):
                return None
            if sha256_of(self._file("faiss")) != about["sha256"]:
                _log.warning("%s is damaged: clusters are found again", self._file("faiss"))
                return None
            clusters = Clusters.load(self._file("faiss"), there)
            clusters.looked_into = int(about["looked_into"])
            clusters.listed_rows = int(about["listed_rows"])
            return clusters, float(about["recall"])
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            _log.warning("clusters cannot be read from %s: %s", self.folder, error)
            return None

    def save(self, clusters: Clusters, recall: float) -> None:
        """Keeps clusters in the place of those that were kept before.

        What a process left that was killed meanwhile has no file about it: clusters are found and
        kept again, over what it left.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._file("lock"), timeout=0):
                self._file("json").unlink(missing_ok=True)
                self._write("faiss", clusters.save)
                about = {
                    "version": _VERSION,
                    "contents": self.contents,
                    "sha256": sha256_of(self._file("faiss")),
                    "looked_into": clusters.looked_into,
                    "listed_rows": clusters.listed_rows,
                    "recall": recall,
                }
                text = json.dumps(about, indent=1) + "\n"
                self._write("json", lambda path: path.write_text(text))
        except Timeout:
            _log.info("another process keeps clusters in %s", self.folder)
        except (OSError, RuntimeError) as error:
            _log.warning("clusters cannot be kept in %s: %s", self.folder, error)

    def _write(self, suffix: str, write: Callable[[Path], object]) -> None:
        partial = self._file("partial")
        try:
            write(partial)
            partial.replace(self._file(suffix))
        finally:
            partial.unlink(missing_ok=True)

    def _file(self, suffix: str) -> Path:
        name = hashlib.sha256(self.space.encode()).hexdigest()[:24]
        return self.folder / f"{name}.{suffix}"
