"""The model card of a pack: README.md, rendered from pack.json with the template `card.md`."""

import re
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from polyview.export.pack.schema import PackInfo
from polyview.models import METHODS

TAG = "polyview"  # marks packs on the Hub
# The Hub's identifiers of licences: SPDX identifiers in lower case.
_HUB_LICENCES = """
    apache-2.0 mit bsd-2-clause bsd-3-clause isc unlicense mpl-2.0 gpl-2.0 gpl-3.0 lgpl-3.0 agpl-3.0
    openrail cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0
    cc-by-nd-4.0 cc-by-nc-nd-4.0
"""
# The metrics of the papers, which the card shows in percent; pack.json has all metrics.
_LABELS = {
    f"{key}_{measure}": f"{direction} {name}"
    for key, direction in (("i2t", "image to text"), ("t2i", "text to image"))
    for measure, name in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10"), ("map_at_r", "mAP@R"))
} | {"rsum": "rsum, the sum of the six recalls"}


def render(info: PackInfo) -> str:
    """The card as Markdown with the Hub's front matter: licence, tags and retrieval results."""
    measured = {name: m.metrics for name, m in info.methods.items() if m.metrics is not None}
    results = [
        EvalResult(
            task_type="image-text-retrieval",
            task_name="Image-text retrieval",
            dataset_type=info.name,
            dataset_name=f"{info.title}, {metrics.split}",
            dataset_split=metrics.split,
            metric_type=key,
            metric_value=round(metrics.values[key], 1),
            metric_name=f"{method}, {label}",
        )
        for method, metrics in measured.items()
        for key, label in _LABELS.items()
        if key in metrics.values
    ]
    methods = dict.fromkeys(entry.method or name for name, entry in info.methods.items())
    licence = info.licence.lower()
    is_hub_licence = licence in _HUB_LICENCES.split()
    # an identifier for other licences, whose names are in the text
    identifier = re.sub(r"[^a-z0-9.]+", "-", licence).strip("-") or "unknown"
    front = ModelCardData(
        language="en",
        library_name="polyview",
        license=licence if is_hub_licence else "other",
        license_name=None if is_hub_licence else identifier,
        model_name=info.title if results else None,
        eval_results=results or None,
        pipeline_tag="feature-extraction",
        tags=[TAG, "image-text-retrieval", "visual-semantic-embedding", "onnx", *methods],
    )
    values: dict[str, Any] = {"info": info, "known": METHODS, "labels": _LABELS}
    template = str(Path(__file__).with_suffix(".md"))
    return f"{ModelCard.from_template(front, template, measured=measured, **values)}\n"
