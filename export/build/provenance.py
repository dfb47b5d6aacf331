"""What a pack's card says of where it is from: taken from the runs it is made of, or asked for.

A card that guesses is worse than none: title, description and credits come from what training wrote
about its data and image encoder; a licence is known only where everything was rendered here.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from export.build.pack import Labels, labels_of
from export.build.trained import DataAbout, TrainedBackbone, TrainedMethod
from export.pack.validation import check
from models import METHODS

OURS = "Apache-2.0"  # of weights that learned from rendered scenes alone
GLYPHS = "Noto Color Emoji (OFL 1.1)"  # what the scenes are made of
_KINDS = {
    "scenes": "a rendered world of scenes",
    "photographs": "photographs",
    "features": "images by ready-made features of their regions",
}


def labels_for(
    given: argparse.Namespace, encoder: TrainedBackbone | None, runs: Sequence[TrainedMethod]
) -> Labels:
    """What people read about a pack; what the command line says wins.

    Args:
        given: the options of `export.build.pack.parser_of`.
        encoder: the pack's image encoder; None where it reads ready-made features.
        runs: its methods.

    Raises:
        ValueError: something is not known, and was not given.
    """
    known = _known(encoder, runs)
    missing = [
        name
        for name in Labels.__dataclass_fields__
        if not (getattr(given, name) or known.get(name))
    ]
    if missing == ["licence"]:
        over = f" over {encoder.source}" if encoder is not None else ""
        raise ValueError(
            f"nobody knows the licence of weights that learned from {known['name']}{over}; say it "
            'with --licence, for example --licence CC-BY-NC-4.0, or --licence "research only"'
        )
    if missing:
        options = " ".join(f"--{name} ..." for name in missing)
        raise ValueError(
            f"{runs[0].folder} does not say what it learned from: an earlier version trained it; "
            f"say what people are to read with {options}"
        )
    if not given.title and given.name:
        known["title"] = given.name.replace("_", " ").capitalize()
    labels = labels_of(given, **known)
    if encoder is not None and (pack := encoder.about.get("pack")):
        refuse_freer(labels.licence, pack["licence"], f'the pack "{pack["title"]}"')
    return labels


def refuse_freer(licence: str, theirs: str, whose: str) -> None:
    """Weights over others that are not for commerce cannot be for it.

    Raises:
        ValueError: the licence allows what that of the others does not.
    """
    if _commercial(licence) and not _commercial(theirs):
        raise ValueError(
            f'the licence "{licence}" does not keep what {whose} asks for, which is under '
            f"{theirs}: no commercial use; give --licence {theirs}"
        )


def _commercial(licence: str) -> bool:
    """Whether a licence, by what it is called, leaves commercial use open."""
    return not re.search(r"\bnc\b|non-?commercial|research", licence.lower())


def _known(encoder: TrainedBackbone | None, runs: Sequence[TrainedMethod]) -> dict[str, str]:
    """Those of the labels that follow from what was trained on what."""
    data = [run.about.data for run in runs if run.about.data is not None]
    if len(data) < len(runs):
        return {}
    names = list(dict.fromkeys(about.name for about in data))
    scenes = all(about.kind == "scenes" for about in data)
    texts = list(dict.fromkeys(s for run in runs if (s := run.about.text_encoder.source)))
    eyes = f"{runs[0].about.image_dim:,} numbers for each region"
    credits, free = list[str](), True
    if encoder is not None:
        eyes, credits, free = _of_encoder(encoder)
    methods = " and ".join(METHODS[run.about.method].title for run in runs[-2:])
    methods = ", ".join([*(METHODS[run.about.method].title for run in runs[:-2]), methods])
    shown = "Images and captions" if encoder is not None else "Features and captions"
    counts = f"{data[0].images:,} images with {data[0].captions:,} captions"
    credits = [GLYPHS if scenes else f"{shown}: {' and '.join(names)}", *credits]
    known = {
        "name": "scenes"
        if scenes
        else re.sub(r"[^a-z0-9]+", "_", names[0].lower()).strip("_")[:64],
        "title": "Scenes" if scenes else " and ".join(names)[:200],
        "description": (
            f"Search in {_KINDS[data[0].kind]}: {methods}, trained on {' and '.join(names)} "
            f"({counts}), over {eyes}."
        ),
        "credits": "; ".join(dict.fromkeys([*credits, *(f"text encoder {s}" for s in texts)])),
    }
    return known | ({"licence": OURS} if scenes and free and not texts else {})


def _of_encoder(encoder: TrainedBackbone) -> tuple[str, list[str], bool]:
    """What to call an image encoder, whom to thank, and whether it is free of others' rights."""
    about = encoder.about
    if pack := about.get("pack"):
        named = f'the image encoder of the pack "{pack["title"]}"'
        return named, [pack["credits"]], pack["licence"] == OURS and pack["credits"] == GLYPHS
    if about["arch"] != "scene_net":
        return (
            f"the image encoder {Path(encoder.source).name}",
            [f"image encoder {encoder.source}"],
            False,
        )
    if "data" not in about:
        return f"the image encoder {encoder.source}", [f"image encoder {encoder.source}"], False
    data = check(DataAbout, about["data"], encoder.source)
    named = f"an image encoder trained on {data.name} ({data.images:,} images)"
    if data.kind == "scenes":
        return named, [GLYPHS], True
    taught = f", with {Path(data.teacher).name} as the teacher" if data.teacher else ""
    return named + taught, [f"image encoder: {data.name}{taught}"], False
