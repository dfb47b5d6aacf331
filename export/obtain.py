"""Finds and fetches packs and published weights on the Hub; converts weights to packs."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from huggingface_hub.utils import filter_repo_objects

from polyview.export import clip, official
from polyview.export.build.released import BERT_FILES, BERT_ID, find_checkpoint
from polyview.export.encoders.sources import ENCODER_FILES
from polyview.export.hub import client, packs
from polyview.export.hub.client import CancelledError, HubError, Repo
from polyview.export.pack.schema import MANIFEST, UNKNOWN_LICENCE, Labels
from polyview.models.files import naming_full_disk

PACK, CLIP, VSE_INFTY = "pack", "clip", "vse_infty"  # kinds of content at an address


class NoWeightsError(HubError):
    """A repository holds no weights in a supported format."""


@dataclass(frozen=True)
class Offer:
    """The files to fetch for one address."""

    kind: str  # PACK, CLIP or VSE_INFTY
    address: str  # as requested
    repos: Sequence[Repo]  # the files of each repository; the first belongs to the address

    @property
    def missing_bytes(self) -> int:
        """The number of bytes to fetch, without files of unknown size."""
        return sum(size or 0 for repo in self.repos for size in repo.missing.values())

    @property
    def unknown(self) -> int:
        """The number of files to fetch for which the Hub states no size."""
        return sum(size is None for repo in self.repos for size in repo.missing.values())


def look(kind: str, address: str, token: client.Token = None) -> Offer:
    """Asks the Hub for the files of an address, without fetching them.

    The address is `owner/name[@revision]` of a pack (PACK) or of weights of CLIP (CLIP), or
    `owner/name/FOLDER_OR_FILE[@revision]` of the authors' weights (VSE_INFTY).

    Raises ValueError if the address is not valid or has no content of this kind, UnreachableError
    if the Hub cannot be reached, HubError if it refuses.
    """
    if kind == VSE_INFTY:
        weights, pieces = find_checkpoint(address, token), client.inspect_repo(BERT_ID, token)
        return Offer(kind, address, [weights, pieces.only(pieces.files.keys() & set(BERT_FILES))])
    repo = client.inspect_repo(address, token)
    if kind == CLIP:
        names = list(filter_repo_objects(repo.files, allow_patterns=ENCODER_FILES))
        if not any(name.endswith(".safetensors") for name in names):
            raise NoWeightsError(
                f"{address} has no safetensors weights; name a revision that has them, such as "
                f"{repo.repo_id}@refs/pr/1, or another CLIP"
            )
    elif MANIFEST not in repo.files:
        raise HubError(f"{address} is not a pack: it has no {MANIFEST}")
    else:
        names = [name for name in repo.files if not name.startswith(".git")]
    return Offer(kind, address, [repo.only(names)])


def obtain(
    offer: Offer, out: Path, progress: client.Progress, cancelled: Event, visitor: bool = False
) -> Path:
    """Downloads an offer from `look`, and converts published weights into a pack.

    A converted pack replaces the folder `out`; a pack stays in the client's cache. `progress` gets
    0 of 0 bytes during a conversion. `cancelled` ends a download; a conversion is not interrupted,
    but its result is removed. A `visitor` gets only packs, within the limits of
    `export/hub/packs.py` and without a token. Returns the pack's folder. Raises CancelledError if
    `cancelled` was set, ValueError if the download or the conversion failed.
    """

    def report(done: int, total: int, doing: str) -> None:
        if cancelled.is_set():
            raise CancelledError("the download was cancelled")
        progress(min(done, total), total, doing)

    first = offer.repos[0]
    if offer.kind == PACK:
        return packs.pull(offer.address, False if visitor else None, first.commit, visitor, report)
    if visitor:
        raise ValueError("visitors can load only packs; convert the weights to a pack first")
    for repo in offer.repos:
        client.fetch(repo, progress=report)
    report(0, 0, "Converting, and comparing the result with the original")
    licence = first.licence or UNKNOWN_LICENCE
    with naming_full_disk(out):
        if offer.kind == CLIP:
            source, title = f"{first.repo_id}@{first.commit}", first.repo_id.partition("/")[2]
            texts = f"CLIP, {title}", licence, f"CLIP, weights of {source}", clip.DESCRIPTION
            clip.build_clip(out, source, Labels(clip.METHOD, *texts))
        else:
            hub_address = f"{first.repo_id}/{next(iter(first.files))}@{first.commit}"
            arguments = ["--hub", hub_address, "--out", str(out), "--licence", licence]
            official.convert(official.make_parser().parse_args(["--from", VSE_INFTY, *arguments]))
    if cancelled.is_set():
        shutil.rmtree(out)
        raise CancelledError("the conversion was cancelled")
    return out
