"""Checks whether a pack was trained on images like those to be searched."""

from dataclasses import dataclass

import torch

from polyview.app.search.retriever import Retriever
from polyview.app.settings import PHOTOGRAPHS, SCENES
from polyview.export.pack.schema import PackInfo, current_name

_SAMPLE = 48  # images compared
_MOST = 0.5  # largest share of unfamiliar images


@dataclass(frozen=True)
class Mismatch:
    """A message for people, and the bundled pack that suits better."""

    sentence: str
    better: str


def knows_scenes(info: PackInfo) -> bool:
    """Whether a pack was trained on rendered scenes only."""
    return info.name == SCENES


def knows_photographs(info: PackInfo) -> bool:
    """Whether a pack is the bundled one for photographs, under its present or former name."""
    return current_name(info.name) == PHOTOGRAPHS


def mismatch(retriever: Retriever) -> Mismatch | None:
    """Why a pack does not suit a collection; None if no reason is known.

    As soon as a few images are read, they are compared with the pack's training images, see
    `export.pack.calibration`. The domain of the pack for photographs is so wide that it includes
    rendered scenes, which are recognised by their ground truth.
    """
    info, images = retriever.info, retriever.collection
    if images.comes_with(info.folder):
        return None
    photographs = knows_photographs(info)
    if photographs and images.relevant:
        return Mismatch("This pack knows photographs, and these are drawn scenes.", SCENES)
    if not photographs and _unfamiliar(retriever):
        known = "drawn scenes of emoji only" if knows_scenes(info) else "other images than these"
        return Mismatch(
            f"{info.title} knows {known}: what it finds here means little.", PHOTOGRAPHS
        )
    return None


def _unfamiliar(retriever: Retriever) -> bool:
    """Whether most images of a sample are unfamiliar; False if not known yet."""
    domain, index = retriever.info.domain, retriever.index
    own = [n for n, method in retriever.info.methods.items() if method.image_encoder is None]
    ids = retriever.gallery(index.first).ids()
    if domain is None or not own or (len(ids) < _SAMPLE and not index.first_done.is_set()):
        return False
    some = ids[:: max(1, len(ids) // _SAMPLE)][:_SAMPLE].tolist()
    images = [retriever.image(image_id).reached() for image_id in some]
    features = index.features(images, own[0], at_hand=True)
    if not features:
        return False
    distances = domain.distances(torch.stack(list(features.values())).numpy())
    return bool((distances > domain.limit).mean() > _MOST)
