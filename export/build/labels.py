"""Title, credits and licence of a pack, derived from the runs it is made of.

A card that guesses is worse than none: title, description and credits come from what training wrote
about its data and image encoder; a licence is known only where everything was rendered here.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from export.build.command import Labels, labels_from
from export.build.trained import DataAbout, TrainedRun
from export.pack.validation import check
from models import METHODS

OURS = "Apache-2.0"  # of weights that learned from rendered scenes alone
GLYPHS = "Noto Color Emoji (OFL 1.1)"  # what the scenes are made of
_KINDS = {
    "scenes": "a rendered world of scenes",
    "photographs": "photographs",
    "features": "images by ready-made features of their regions",
}
_NON_COMMERCIAL = re.compile(r"\bnc\b|non-?commercial|research", re.IGNORECASE)


def labels_for(
    options: argparse.Namespace, encoder: Mapping[str, Any], runs: Sequence[TrainedRun]
) -> Labels:
    """What people read about a pack; what the command line says wins.

    Args:
        options: of `export.build.command.pack_parser`.
        encoder: what the pack's image encoder is, see `describe_image_source`; empty where it reads
            ready-made features.
        runs: its methods.

    Raises:
        ValueError: something is not known, and was not given.
    """
    known = _known(encoder, runs)
    names = Labels.__dataclass_fields__
    missing = [name for name in names if not (getattr(options, name) or known.get(name))]
    if missing == ["licence"]:
        over = f" over {encoder['source']}" if encoder else ""
        raise ValueError(
            f"nobody knows the licence of weights that learned from {known['name']}{over}; say it "
            'with --licence, for example --licence CC-BY-NC-4.0, or --licence "research only"'
        )
    if missing:
        needed = " ".join(f"--{name} ..." for name in missing)
        raise ValueError(
            f"{runs[0].folder} does not say what it learned from: an earlier version trained it; "
            f"say what people are to read with {needed}"
        )
    if not options.title and options.name:
        known["title"] = options.name.replace("_", " ").capitalize()
    labels = labels_from(options, **known)
    if pack := encoder.get("pack"):
        refuse_freer(labels.licence, pack["licence"], f'the pack "{pack["title"]}"')
    return labels


def refuse_freer(licence: str, theirs: str, whose: str) -> None:
    """Refuses a licence for commerce for weights over others that exclude it.

    Raises:
        ValueError: `licence` allows what `theirs` does not.
    """
    if _NON_COMMERCIAL.search(theirs) and not _NON_COMMERCIAL.search(licence):
        raise ValueError(
            f'the licence "{licence}" does not keep what {whose} asks for, which is under '
            f"{theirs}: no commercial use; give --licence {theirs}"
        )


def _known(encoder: Mapping[str, Any], runs: Sequence[TrainedRun]) -> dict[str, str]:
    """Those of the labels that follow from what was trained on what."""
    data = [run.about.data for run in runs if run.about.data is not None]
    if len(data) < len(runs):
        return {}
    names = " and ".join(dict.fromkeys(about.name for about in data))
    scenes = all(about.kind == "scenes" for about in data)
    texts = [f"text encoder {source}" for run in runs if (source := run.about.text_encoder.source)]
    features, images = f"{runs[0].about.image_dim:,} numbers for each region", ""
    if encoder:
        features, images = _of_encoder(encoder)
    *titles, last = (METHODS[run.about.method].title for run in runs)
    methods = f"{', '.join(titles)} and {last}" if titles else last
    source = GLYPHS if scenes else f"{'Images' if encoder else 'Features'} and captions: {names}"
    slug = re.sub(r"[^a-z0-9]+", "_", data[0].name.lower()).strip("_")[:64]
    known = {
        "name": "scenes" if scenes else slug,
        "title": "Scenes" if scenes else names[:200],
        "description": (
            f"Search in {_KINDS[data[0].kind]}: {methods}, trained on {names} "
            f"({data[0].images:,} images with {data[0].captions:,} captions), over {features}."
        ),
        "credits": "; ".join(dict.fromkeys(filter(None, [source, images, *texts]))),
    }
    return known | ({"licence": OURS} if known["credits"] == GLYPHS else {})


def _of_encoder(about: Mapping[str, Any]) -> tuple[str, str]:
    """What to call an image encoder, and whom to thank."""
    source = about["source"]
    if pack := about.get("pack"):
        return f'the image encoder of the pack "{pack["title"]}"', pack["credits"]
    if about["arch"] != "scene_net" or "data" not in about:
        published = about["arch"] != "scene_net"
        name = Path(source).name if published else source
        return f"the image encoder {name}", f"image encoder {source}"
    data = check(DataAbout, about["data"], source)
    teacher = f", with {Path(data.teacher).name} as the teacher" if data.teacher else ""
    credit = GLYPHS if data.kind == "scenes" else f"image encoder: {data.name}{teacher}"
    return f"an image encoder trained on {data.name} ({data.images:,} images){teacher}", credit
