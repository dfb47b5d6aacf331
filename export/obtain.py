"""Finds and fetches packs and published CLIP weights on the Hub; converts weights to packs."""

import shutil
from pathlib import Path
from threading import Event
from typing import NamedTuple

from huggingface_hub.utils import filter_repo_objects

from polyview.export import clip
from polyview.export.encoders.sources import ENCODER_FILES
from polyview.export.hub import client, packs
from polyview.export.hub.client import CancelledError, HubError, Repo
from polyview.export.pack.schema import MANIFEST, UNKNOWN_LICENCE, Labels

PACK = "pack"
CLIP = "clip"  # weights of CLIP or SigLIP


class Offer(NamedTuple):
    """The files to fetch for one address."""

    kind: str  # PACK or CLIP, the content at the address
    repo: Repo  # restricted to the files to fetch


def find_offer(kind: str, address: str, token: client.Token = None) -> Offer:
    """Finds the files of an address `owner/name[@revision]` on the Hub, without fetching them.

    `kind` is PACK or CLIP. Raises ValueError if the address is not a Hub id, UnreachableError if
    the Hub cannot be reached, HubError if the Hub refuses, or has no such content at the address.
    """
    repo = client.inspect_repo(address, token)
    if kind == CLIP:
        names = list(filter_repo_objects(repo.files, allow_patterns=ENCODER_FILES))
        if not any(name.endswith(".safetensors") for name in names):
            advice = f"name a revision that has them, such as {repo.repo_id}@refs/pr/1"
            raise HubError(f"{address} has no safetensors weights; {advice}, or another CLIP")
    elif MANIFEST not in repo.files:
        raise HubError(f"{address} is not a pack: it has no {MANIFEST}")
    else:
        names = [name for name in repo.files if not name.startswith(".git")]
    return Offer(kind, repo.select(names))


def obtain(
    offer: Offer, out: Path, progress: client.Progress, cancelled: Event, for_visitor: bool = False
) -> Path:
    """Downloads an offer from `find_offer` and converts weights; returns the pack's folder.

    A converted pack replaces the folder `out`; a downloaded pack stays in the Hub's cache.
    `progress` receives 0 of 0 bytes during a conversion. Setting `cancelled` ends a download; a
    conversion continues, but its result is removed. With `for_visitor`, only packs within the
    limits of `export/hub/packs.py` are downloaded, without a token. Raises CancelledError if
    `cancelled` was set, ValueError if the download or the conversion fails.
    """

    def report(done: int, total: int, step: str) -> None:
        if cancelled.is_set():
            raise CancelledError("the download was cancelled")
        progress(min(done, total), total, step)

    repo = offer.repo
    if offer.kind == PACK:
        token = False if for_visitor else None
        return packs.pull(repo.address, token, repo.commit, for_visitor, report)
    if for_visitor:
        raise ValueError("visitors can load only packs; convert the weights to a pack first")
    client.fetch(repo, progress=report)
    report(0, 0, "Converting, and comparing the result with the original")
    source = f"{repo.repo_id}@{repo.commit}"
    title = f"CLIP, {repo.repo_id.partition('/')[2]}"
    licence = repo.licence or UNKNOWN_LICENCE
    labels = Labels(clip.METHOD, title, licence, f"CLIP, weights of {source}", clip.DESCRIPTION)
    clip.build_clip(out, source, labels)
    if cancelled.is_set():
        shutil.rmtree(out)
        raise CancelledError("the conversion was cancelled")
    return out
