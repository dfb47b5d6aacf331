"""The model card of a pack: its README.md, rendered from pack.json and from nothing else."""

import re
from collections.abc import Iterable, Mapping, Sequence

from huggingface_hub import EvalResult, ModelCardData

from export.pack.schema import MethodInfo, PackInfo, Parity
from models import METHODS

TAG = "polyview"  # by which packs are found on the Hub
# Licences the Hub has an identifier for, which is the SPDX identifier in lower case.
HUB_LICENCES = (
    "apache-2.0",
    "mit",
    "bsd-2-clause",
    "bsd-3-clause",
    "isc",
    "unlicense",
    "mpl-2.0",
    "gpl-2.0",
    "gpl-3.0",
    "lgpl-3.0",
    "agpl-3.0",
    "openrail",
    "cc0-1.0",
    "cc-by-3.0",
    "cc-by-4.0",
    "cc-by-sa-3.0",
    "cc-by-sa-4.0",
    "cc-by-nc-4.0",
    "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0",
    "cc-by-nc-nd-4.0",
)
# those for the front matter, by names that stand alone; all in per cent
RETRIEVAL = {
    f"{key}_{measure}": f"{direction} {name}"
    for key, direction in (("i2t", "image to text"), ("t2i", "text to image"))
    for measure, name in (("r1", "R@1"), ("r5", "R@5"), ("r10", "R@10"), ("map_at_r", "mAP@R"))
} | {"rsum": "rsum, the sum of the six recalls"}
LABELS = RETRIEVAL | {
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
# what is measured of each kind of captions
_KINDS = {
    re.compile(r"foil_(\w+)"): "true caption above a false one, %: {}",
    re.compile(r"(\w+)_rsum"): "rsum of captions of one kind: {}",
    re.compile(r"(\w+)_above_alike"): "caption scores its image above those alike, %: {}",
}
# in pack.json, too many for a table, or the bounds of a number that is in it
_FINER = re.compile(
    r"(wins|pointing|mass)_\d+|\w+_gain_\w+|evidence_error|\w+_(i2t|t2i)_\w+|\w+_(low|high|margin|pairs)"
)
_AREAS = ("deletion", "insertion", "view_cosine")  # begin the keys of values from 0 to about 1


def render(info: PackInfo) -> str:
    """Renders the card.

    Args:
        info: the pack; a method without metrics is said to be not measured yet.

    Returns:
        Markdown with the Hub's front matter.
    """
    sections = [
        _front_matter(info),
        f"# {info.title}\n\n{info.description}",
        _methods(info),
        _results(info),
        _export(info),
        _use(info),
        _loading(info),
        f"## Licence and credits\n\nLicence: {info.licence}. Credits: {info.credits}.",
    ]
    return "\n\n".join(sections) + "\n"


def _front_matter(info: PackInfo) -> str:
    """What the Hub reads: licence, tags, and what was measured."""
    known = info.licence.lower() in HUB_LICENCES
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
        for key, label in RETRIEVAL.items()
        if key in entry.metrics.values
    ]
    data = ModelCardData(
        language="en",
        library_name="polyview",
        license=info.licence.lower() if known else "other",
        license_name=None if known else name,
        model_name=info.title if results else None,
        eval_results=results or None,
        pipeline_tag="feature-extraction",
        tags=[TAG, "image-text-retrieval", "visual-semantic-embedding", "onnx", *_keys(info)],
    )
    return f"---\n{data.to_yaml()}\n---"


def _keys(info: PackInfo) -> list[str]:
    """The methods of a pack, by their keys in `models.METHODS`, each once."""
    return list(dict.fromkeys(entry.method or name for name, entry in info.methods.items()))


def _methods(info: PackInfo) -> str:
    rows = []
    for name, entry in info.methods.items():
        known = METHODS.get(entry.method or name)
        title = entry.title or (known.title if known else "")
        rows.append((f"`{name}`", title, known.paper if known else ""))
    intro = (
        "A Polyview pack: one image encoder, and for each method a text encoder (both ONNX) and "
        "the heads that turn their features into views (safetensors, read by torch)."
    )
    if info.image_encoder.file is None:
        intro = (
            "A Polyview pack: for each method a text encoder (ONNX) and the heads that turn "
            "features into views (safetensors, read by torch). There is no image encoder: the "
            f"features of an image's regions, {info.image_encoder.dim} numbers each, come from "
            "elsewhere."
        )
    return f"## Methods\n\n{intro}\n\n{_table(('key', 'method', 'paper'), rows)}"


def _number(key: str, value: float) -> str:
    if key.endswith("nmr"):
        return f"{value:.4f}"
    return f"{value:.3f}" if key.startswith(_AREAS) else f"{value:.1f}"


def _cell(key: str, values: Mapping[str, float]) -> str:
    """A number with its 95 % interval, where there is one."""
    if key not in values:
        return ""
    number = _number(key, values[key])
    if f"{key}_margin" in values:
        return f"{number} ± {values[f'{key}_margin']:.1f}"
    if f"{key}_low" in values:
        return f"{number} ({values[f'{key}_low']:.1f} to {values[f'{key}_high']:.1f})"
    return number


def _label(key: str) -> str:
    if key in LABELS:
        return LABELS[key]
    for pattern, words in _KINDS.items():
        if match := pattern.fullmatch(key):
            return words.format(match[1].replace("_", " "))
    return key


def _results(info: PackInfo) -> str:
    measured = {name: m.metrics for name, m in info.methods.items() if m.metrics is not None}
    parts = ["## Results"]
    if measured:
        named = {key for metrics in measured.values() for key in metrics.values}
        others = {key for key in named - LABELS.keys() if not _FINER.fullmatch(key)}
        keys = [key for key in LABELS if key in named] + sorted(others, key=_label)
        rows = [("split", *(metrics.split for metrics in measured.values()))]
        for key in keys:
            rows.append((_label(key), *(_cell(key, m.values) for m in measured.values())))
        parts.append(_table(("", *(f"`{name}`" for name in measured)), rows))
        parts.append(
            "\n".join(
                f"- `{name}`: `{m.command}`; {m.hardware}; training seed "
                f"{'unknown' if m.seed is None else m.seed}"
                for name, m in measured.items()
            )
        )
    missing = [f"`{name}`" for name in info.methods if name not in measured]
    if missing:
        parts.append(f"Not measured yet: {', '.join(missing)}.")
    return "\n\n".join(parts)


def _export(info: PackInfo) -> str:
    # rounding that changed no score at all was none
    rounded = any(method.parity.get("fp16_numbers", 1.0) for method in info.methods.values())
    weights = "were rounded to half precision once" if rounded else "are kept as they were"
    intro = (
        f"Weights {weights}; all is computed in single precision. At export the pack was compared "
        "with the torch modules it was made from:"
    )
    rows = [(f"`{name}`", *_parity_cells(method)) for name, method in info.methods.items()]
    heads = ("method", "largest difference", "ranking", "effect of rounding on scores")
    return f"## Export\n\n{intro}\n\n{_table(heads, rows)}"


def _parity_cells(method: MethodInfo) -> tuple[str, str, str]:
    if not method.parity:
        return ("not measured yet", "", "")
    parity = Parity(**method.parity)
    ranking = "identical" if parity.ranking else "differs"
    return (f"{parity.numbers:.1e}", ranking, f"{parity.fp16_numbers:.1e}")


def _use(info: PackInfo) -> str:
    size, fit = info.preprocess.size, info.preprocess.fit
    shown = "the whole picture, stretched" if fit == "stretch" else "the picture's centre, scaled"
    sees = f"The image encoder sees {shown} to {size} x {size} pixels."
    if info.image_encoder.file is None:
        sees = "It cannot read pictures: it searches features that were computed elsewhere."
    return f"""## Intended use and limits

For searching pictures by sentences and sentences by pictures, for comparing retrieval methods side
by side, and for looking at what each view of a method attends to.

- It knows what its training data showed: see the description and the recipes in `training/`.
- Words outside the vocabulary are read as unknown. The app reads another form, or a plain name, of
  such a word in its place where the vocabulary has one, and says so.
- Texts are cut after {info.tokenizer.max_length} tokens.
- {sees}
- A score orders results within one method. It is no probability, and scores of different methods
  cannot be compared.
- It is not made for decisions about people."""


def _loading(info: PackInfo) -> str:
    method = next(iter(info.methods))
    app = (
        "In the app, from a folder or from the Hub:\n\n    python app/main.py --pack PATH_OR_HUB_ID"
    )
    reader = f', "{method}"' if info.methods[method].image_encoder else ""
    library, features = (
        "from PIL import Image",
        f'runtime.image_features([Image.open("picture.jpg")]{reader})',
    )
    if info.image_encoder.file is None:
        app += "\n\nIt searches the pack's own gallery there, by features that come with it."
        if not info.has_regions:
            app = "The app searches pictures, which this pack cannot."
        library, features = "import numpy as np\nimport torch", 'torch.tensor(np.load("ims.npy"))'
    return f"""## How to load it

{app}

In Python, from a checkout of Polyview:

```python
{library}

from export.hub.resolve import resolve
from export.runtime import Runtime

runtime = Runtime.load(resolve("PATH_OR_HUB_ID"))
images = runtime.image_views({features}, "{method}")
texts = runtime.text_views(["a sentence"], "{method}")
print(runtime.methods["{method}"].score(images, texts))
```"""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
