"""The model card of a pack: its README.md, rendered from pack.json alone into `card.md`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from export.pack.schema import MethodInfo, PackInfo, Parity
from models import METHODS

TAG = "polyview"  # by which packs are found on the Hub
# The Hub's identifiers of licences: the SPDX identifiers in lower case.
_HUB_LICENCES = """
    apache-2.0 mit bsd-2-clause bsd-3-clause isc unlicense mpl-2.0 gpl-2.0 gpl-3.0 lgpl-3.0 agpl-3.0
    openrail cc0-1.0 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nc-sa-4.0
    cc-by-nd-4.0 cc-by-nc-nd-4.0
"""
# of the front matter, by names that stand alone; in per cent
_RETRIEVAL = {
    f"{key}_{measure}": f"{direction} {name}"
    for key, direction in (("i2t", "image to text"), ("t2i", "text to image"))
    for measure, name in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10"), ("map_at_r", "mAP@R"))
} | {"rsum": "rsum, the sum of the six recalls"}
_LABELS = _RETRIEVAL | {
    **{
        f"{key}_{measure}": f"{direction} {name}"
        for key, direction in (("i2t", "image to text"), ("t2i", "text to image"))
        for measure, name in (
            ("medr", "median rank"),
            ("nmr", "median rank over gallery size"),
            ("meanr", "mean rank"),
            ("rprecision", "R-precision"),
        )
    },
    "view_cosine": "cosine between an image's views",
    "wins_entropy": "entropy of the wins of views, bits",
    "pointing": "the winning view points at a mentioned object, %",
    "pointing_chance": "the same by chance, %",
    "mass": "the winning view's attention on mentioned objects, %",
    "mass_chance": "the same by chance, %",
    "evidence_pointing": "evidence points at a mentioned object, %",
    "evidence_random_head": "the same with random heads, %",
    "evidence_chance": "the same by chance, %",
    "evidence_word_pointing": "evidence of a word points at its object, %",
    "evidence_word_chance": "the same by chance, %",
    "moment_pointing": "evidence peaks in a frame that shows what is mentioned, %",
    "moment_chance": "the same by chance, %",
    "moment_word_pointing": "evidence of a word peaks in a frame that shows its object, %",
    "moment_word_chance": "the same by chance, %",
    "deletion": "deletion by evidence",
    "deletion_random": "deletion at random",
    "deletion_map": "deletion by the paper's map",
    "deletion_renewed": "deletion by evidence, renewed at each step",
    "deletion_renewed_map": "deletion by the paper's map, renewed",
    "insertion": "insertion by evidence",
    "insertion_random": "insertion at random",
    "insertion_map": "insertion by the paper's map",
}
# values measured for each kind of captions
_BY_CAPTIONS = {
    re.compile(r"foil_(\w+)"): "true caption above a false one, %: {}",
    re.compile(r"(\w+)_rsum"): "rsum of captions of one kind: {}",
    re.compile(r"(\w+)_above_alike"): "caption scores its image above those alike, %: {}",
}
# left to pack.json: too many for a table, or the bounds of a value that is in it
_DETAILS = re.compile(
    r"(wins|pointing|mass)_\d+|\w+_gain_\w+|evidence_error|\w+_(i2t|t2i)_\w+|\w+_(low|high|margin|pairs)"
)
_FRACTIONS = ("deletion", "insertion", "view_cosine")  # prefixes of values from 0 to about 1


def render(info: PackInfo) -> str:
    """Renders the card.

    Args:
        info: the pack; the card lists methods without metrics as not measured yet.

    Returns:
        Markdown with the Hub's front matter.
    """
    first, entry = next(iter(info.methods.items()))
    measured = {name: m.metrics for name, m in info.methods.items() if m.metrics is not None}
    heads = ("method", "largest difference", "ranking", "effect of rounding on scores")
    card = ModelCard.from_template(
        _front_matter(info),
        str(Path(__file__).with_suffix(".md")),
        info=info,
        reads_images=info.image_encoder.file is not None,
        methods=_table(("key", "method", "paper"), _methods(info)),
        results=_results({name: metrics.values for name, metrics in measured.items()}, info),
        measured=measured,
        unmeasured=", ".join(f"`{name}`" for name in info.methods if name not in measured),
        # rounding that changed no score at all did not happen
        rounded=any(m.parity.get("fp16_numbers", 1.0) for m in info.methods.values()),
        parity=_table(heads, ((f"`{n}`", *_parity_cells(m)) for n, m in info.methods.items())),
        first=first,
        reader=f', "{first}"' if entry.image_encoder else "",
    )
    return str(card) + "\n"


def _front_matter(info: PackInfo) -> ModelCardData:
    """Licence, tags and retrieval results, as the Hub reads them."""
    known = info.licence.lower() in _HUB_LICENCES.split()
    # of another licence an identifier; its own words stand in the text
    name = re.sub(r"[^a-z0-9.]+", "-", info.licence.lower()).strip("-") or "unknown"
    results = [
        EvalResult(
            task_type="image-text-retrieval",
            task_name="Image-text retrieval",
            dataset_type=info.name,
            dataset_name=f"{info.title}, {entry.metrics.split}",
            dataset_split=entry.metrics.split,
            metric_type=key,
            metric_value=float(_number(key, entry.metrics.values[key])),
            metric_name=f"{method}, {label}",
        )
        for method, entry in info.methods.items()
        if entry.metrics is not None
        for key, label in _RETRIEVAL.items()
        if key in entry.metrics.values
    ]
    methods = dict.fromkeys(entry.method or name for name, entry in info.methods.items())
    return ModelCardData(
        language="en",
        library_name="polyview",
        license=info.licence.lower() if known else "other",
        license_name=None if known else name,
        model_name=info.title if results else None,
        eval_results=results or None,
        pipeline_tag="feature-extraction",
        tags=[TAG, "image-text-retrieval", "visual-semantic-embedding", "onnx", *methods],
    )


def _methods(info: PackInfo) -> Iterable[tuple[str, str, str]]:
    """Key, title and paper of each method."""
    for name, entry in info.methods.items():
        known = METHODS.get(entry.method or name)
        title = entry.title or (known.title if known else "")
        yield f"`{name}`", title, known.paper if known else ""


def _results(values: Mapping[str, Mapping[str, float]], info: PackInfo) -> str:
    """A table of measured values, a row each, and a column for each method; "" without any."""
    if not values:
        return ""
    measured = {key for column in values.values() for key in column}
    others = {key for key in measured - _LABELS.keys() if not _DETAILS.fullmatch(key)}
    keys = [key for key in _LABELS if key in measured] + sorted(others, key=_label)
    rows = [("split", *(m.metrics.split for m in info.methods.values() if m.metrics))]
    rows += [(_label(key), *(_cell(key, column) for column in values.values())) for key in keys]
    return _table(("", *(f"`{name}`" for name in values)), rows)


def _number(key: str, value: float) -> str:
    if key.endswith("nmr"):
        return f"{value:.4f}"
    return f"{value:.3f}" if key.startswith(_FRACTIONS) else f"{value:.1f}"


def _cell(key: str, values: Mapping[str, float]) -> str:
    """A value with its 95 % interval, if measured."""
    if key not in values:
        return ""
    number = _number(key, values[key])
    if f"{key}_margin" in values:
        return f"{number} ± {values[f'{key}_margin']:.1f}"
    if f"{key}_low" in values:
        return f"{number} ({values[f'{key}_low']:.1f} to {values[f'{key}_high']:.1f})"
    return number


def _label(key: str) -> str:
    if key in _LABELS:
        return _LABELS[key]
    for pattern, words in _BY_CAPTIONS.items():
        if match := pattern.fullmatch(key):
            return words.format(match[1].replace("_", " "))
    return key


def _parity_cells(method: MethodInfo) -> tuple[str, str, str]:
    if not method.parity:
        return ("not measured yet", "", "")
    parity = Parity(**method.parity)
    ranking = "identical" if parity.ranking else "differs"
    return (f"{parity.numbers:.1e}", ranking, f"{parity.fp16_numbers:.1e}")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
