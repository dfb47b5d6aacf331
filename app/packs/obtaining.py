"""Packs that the app fetches from the Hub, or makes of what it fetches there and keeps."""

import contextlib
import hashlib
import re
import shutil
import sys
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path

from app.packs.jobs import ROOT, FailedError, Job, JobError, Step
from export.build.offer import PACK, Offer
from export.hub.client import remove_incomplete
from export.pack.reading import load_info

_PATIENCE = 5.0  # seconds to remove what is half done


class Obtainer:
    """Obtains one pack at a time, whoever asks.

    The work is `python -m export.obtain` in a process of its own: a conversion takes much
    memory, which is given back so, and whatever goes wrong there, the app goes on.

    Args:
        folder: where converted packs are kept; made when there is one.
        root: the folder that holds `export/`.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self._folder = folder
        self._root = root
        self._job = Job(_PATIENCE)

    def find(self, kind: str, address: str) -> Path | None:
        """The pack that an address was converted to before, None where there is none."""
        folder = self._place(kind, address)
        with contextlib.suppress(ValueError, OSError):
            load_info(folder, verify=False)
            return folder
        return None

    def run(
        self, offer: Offer, owner: str, visitor: bool = False
    ) -> Generator[Step | Path, None, None]:
        """Obtains what was offered; closing the iterator before its end ends the work.

        Args:
            offer: what was looked at.
            owner: who may cancel it.
            visitor: see `export.obtain.obtain`.

        Yields:
            Steps of bytes, at least one in a second, then the pack's folder.

        Raises:
            JobError: another one is under way, or it failed; files that came whole are kept.
            CancelledError: it was cancelled; nothing half done is left.
        """
        place = self._place(offer.kind, offer.address)
        command = [
            *(sys.executable, "-m", "export.obtain", "--kind", offer.kind),
            *(f"--address={offer.address}", f"--commit={offer.parts[0].commit}"),
            *(["--visitor"] if visitor else []),
        ]
        if offer.kind != PACK:
            place.parent.mkdir(parents=True, exist_ok=True)
            command.append(f"--out={place.resolve()}")
        busy = (
            "something is being fetched already, and there can be only one at a time; "
            "try again when it has ended"
        )
        tidy = partial(self._tidy, place, [part.repo_id for part in offer.parts])
        try:
            result = yield from self._job.run(
                command, self._root, owner, busy, held=True, tidy=tidy
            )
        except FailedError as error:
            raise JobError(str(error).removeprefix("export failed: ")) from error
        if "folder" not in result:
            raise JobError("no pack came of it; try again")
        yield Path(result["folder"])

    def cancel(self, owner: str) -> bool:
        """Ends what `owner` started; False where there is nothing."""
        return self._job.cancel(owner)

    def _place(self, kind: str, address: str) -> Path:
        """Where the pack made of an address is kept; other addresses have other folders."""
        readable = re.sub(r"[^A-Za-z0-9.-]+", "-", address).strip("-.")[:80]
        told_apart = hashlib.sha256(f"{kind} {address}".encode()).hexdigest()[:8]
        return self._folder / f"{kind}-{readable}-{told_apart}"

    def _tidy(self, place: Path, repo_ids: Sequence[str]) -> None:
        """Removes what a process that was killed had begun."""
        for half in self._folder.glob(f".{place.name}.*"):
            shutil.rmtree(half, ignore_errors=True)
        for repo_id in repo_ids:
            remove_incomplete(repo_id)
