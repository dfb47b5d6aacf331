"""What is asked of each method of a pack beside recalls: views, evidence, foils."""

import numpy as np
import torch

from export.runtime import Runtime
from models import Views
from training.data.split import Split
from training.evaluation.evaluator import mentioned_cells, named_cells, view_metrics
from training.evaluation.evidence import evidence_metrics
from training.evaluation.foils import foil_metrics, foils_of
from training.evaluation.moments import moment_metrics


class BeyondRecalls:
    """Measures what was asked for, with truth that is read once for all methods.

    Args:
        data: N_img images and N_txt captions.
        runtime: a loaded pack.
        views: ask what each view does, and whether it looks at what a caption mentions.
        evidence: ask whether what a score is made of lies where words say.
        foils: ask whether true captions score above false ones.

    Raises:
        ValueError: nothing is known of the data that would answer what is asked.
    """

    def __init__(
        self, data: Split, runtime: Runtime, *, views: bool, evidence: bool, foils: bool
    ) -> None:
        self._data, self._runtime = data, runtime
        self._views, self._evidence = views, evidence
        self._covered = mentioned_cells(runtime, data) if views or evidence else None
        self._places = named_cells(runtime, data) if evidence else []
        self._foils = foils_of(data) if foils else []

    def measure(
        self, method: str, features: torch.Tensor | np.ndarray, views: tuple[Views, Views]
    ) -> dict[str, float]:
        """What was asked of one method; see the functions that answer it.

        Args:
            method: one of the pack's.
            features: (N_img, n, d) of all images, as the method reads them.
            views: of all images and of all captions.
        """
        runtime, data, found = self._runtime, self._data, dict[str, float]()
        if self._views:
            found |= view_metrics(runtime, method, data, views, self._covered)
        if self._evidence:  # in space, or over the time of clips
            assert isinstance(features, torch.Tensor)  # `named_cells` refuses packs of regions
            if data.frames > 1:
                found |= moment_metrics(runtime, method, data, features)
            else:
                truth = self._covered, self._places
                found |= evidence_metrics(runtime, method, data, features, *truth)
        if self._foils:
            found |= foil_metrics(runtime, method, views[0], self._foils)
        return found
