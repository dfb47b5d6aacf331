"""Whether a pack knows images such as those that it is to search."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from polyview.app.search.retriever import Retriever
from polyview.app.settings import PHOTOGRAPHS, SCENES
from polyview.export.pack.schema import PackInfo, current_name

_SAMPLE = 48  # images that are looked at
_MOST = 0.5  # share of them that may be unlike the pack's own

_looked: WeakKeyDictionary[Retriever, bool] = WeakKeyDictionary()


class Mismatch(NamedTuple):
    """What is wrong, in a sentence, and the bundled pack that would mend it."""

    sentence: str
    better: str


def knows_scenes(info: PackInfo) -> bool:
    """Whether a pack was made for rendered scenes alone."""
    return info.name == SCENES


def knows_photographs(info: PackInfo) -> bool:
    """Whether a pack is the one for photographs, or a copy of it from before it had that name."""
    return current_name(info.name) == PHOTOGRAPHS


def mismatch(retriever: Retriever) -> Mismatch | None:
    """What is wrong with a pack over images; None where nothing is known to be.

    Images are compared with those that the pack was trained on as soon as a few are read, see
    `export.pack.calibration`. The domain of the pack for photographs is wide: rendered scenes are
    within, so these are told by their truth.
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
    """Whether most of a sample are unlike the pack's own; False where that is not known yet."""
    if retriever in _looked:
        return _looked[retriever]
    domain, index = retriever.info.domain, retriever.index
    own = [n for n, method in retriever.info.methods.items() if method.image_encoder is None]
    ids = retriever.gallery(index.first).ids().tolist()
    if domain is None or not own or (len(ids) < _SAMPLE and not index.first_done.is_set()):
        return False
    images = [retriever.image(i).reached() for i in ids[:: max(1, len(ids) // _SAMPLE)][:_SAMPLE]]
    features = index.features(images, own[0], at_hand=True)
    if not features:
        return False
    distances = domain.distances(torch.stack(list(features.values())).numpy())
    _looked[retriever] = bool((distances > domain.limit).mean() > _MOST)
    return _looked[retriever]
