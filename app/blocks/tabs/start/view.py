"""What the templates above the tabs get."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.blocks.tabs.html import render
from app.packs.fit import knows_photographs, mismatch
from app.packs.presets import Preset
from app.search.retriever import Retriever
from app.settings import SCENES


def header(info: dict[str, Any], images: str) -> Markup:
    """The product, the pack, and how far its gallery is.

    Args:
        info: what `describe` says.
        images: what is searched, where these are no pack's images.
    """
    gallery = info["gallery"]
    out = gallery["refused_count"] + gallery["copies_count"]
    return render("start/header", info=info, images=images, out=out)


def choice(private: bool, offered: bool, most: int) -> Markup:
    """What to search: the scenes, or images of the visitor's own.

    Args:
        private: only this machine reaches the app, so that its folders may be named.
        offered: visitors begin with it; others find it by the header.
        most: files that may be sent.
    """
    return render("start/choice", private=private, offered=offered, most=most)


def note(retriever: Retriever, images: str, presets: Sequence[tuple[Preset, bool]] = ()) -> Markup:
    """That a pack does not fit the images, with what mends it; or with what they are searched.

    Args:
        retriever: the pack.
        images: what the visitor's own images are called, if they are searched.
        presets: see `app.packs.presets.offered`; none where nothing may be fetched.
    """
    found, info = mismatch(retriever), retriever.info
    if found is not None:
        choose = {"images": SCENES} if found.better == SCENES else {"pack": found.better}
        return render("start/mismatch", sentence=found.sentence, choose=choose)
    if images and knows_photographs(info):
        known = [(preset, here) for preset, here in presets if preset.addresses]
        return render("start/searched", title=info.title, presets=known)
    return Markup()


def left_out(gallery: dict[str, Any]) -> Markup:
    """The files that were skipped, and why, and copies; nothing where there are none."""
    reasons = [refusal["reason"] for refusal in gallery["refused"]]
    copies = [f"{copy['file']} is the same as {copy['same_as']}" for copy in gallery["copies"]]
    skipped, same = gallery["refused_count"], gallery["copies_count"]
    lists = [
        ("One file was skipped" if skipped == 1 else f"{skipped:,} files were skipped", reasons),
        ("One copy is left out" if same == 1 else f"{same:,} copies are left out", copies),
    ]
    return render("start/left_out", lists=[found for found in lists if found[1]])
