"""What was measured, written into documents from the files that measuring leaves behind."""

import json
from pathlib import Path
from typing import Any

from models import METHODS
from models.files import write_whole
from training.evaluation.report import COLUMNS

RESULTS = Path("app/bundled/ablations/scenes")
PACK = Path("app/bundled/scenes/pack.json")
PHOTOS = Path("app/bundled/photos/pack.json")
PAGE, README = Path("docs/results.md"), Path("README.md")
STUDIES = {
    "scenes_alike": "Alike",
    "scenes_paper": "As in the paper",
    "twins_alike": "Alike, on twins, which hold the same things",
    "flickr8k_alike": "Alike, on photographs (validation)",
}
"""The studies that the README sums up, and what it calls them."""
_RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")
MAIN_COLUMNS = (*_RECALLS, "rsum", "t2i_rprecision", "t2i_map_at_r")
CURVE_SHOWN = 10


def update_page(
    page: Path = PAGE, results: Path = RESULTS, pack: Path = PACK, photos: Path | None = PHOTOS
) -> None:
    """Writes the generated parts of the page again; the rest of it stays.

    Args:
        page: holds, for each part, the lines `<!-- part -->` and `<!-- /part -->`.
        results: folder of the ablations' JSON files.
        pack: `pack.json` of the bundled pack of scenes.
        photos: likewise of the one for photographs; None for a page without its part.

    Raises:
        ValueError: the page lacks one of these lines, or a file is damaged.
    """
    found = [_read(path) for path in sorted(results.glob("*.json"))]
    parts = [line for result in found for line in ablation_lines(result)]
    methods = method_lines(_read(pack))
    replace_part(page, "methods", methods)
    if photos is not None and photos.is_file():
        replace_part(page, "photos", method_lines(_read(photos)))
    replace_part(page, "ablations", parts or ["None was run yet."])


def update_readme(readme: Path = README, pack: Path = PACK, studies: Path = PAGE.parent) -> None:
    """Writes the README's table of shipped methods, and its lines about the studies, again.

    Args:
        readme: holds the marks of `methods` and `studies`, see `update_page`.
        pack: `pack.json` of the bundled pack of scenes.
        studies: folder of the studies' JSON files; those that were not run have no line.

    Raises:
        ValueError: see `update_page`.
    """
    found = [(title, studies / f"{name}.json") for name, title in STUDIES.items()]
    lines = [study_line(title, _read(path)) for title, path in found if path.is_file()]
    lead = (
        "Equally many trials of each, three seeds: rsum, and by how much it is above the baseline"
    )
    replace_part(readme, "methods", shipped_lines(_read(pack)))
    replace_part(readme, "studies", [f"{lead} (95 % interval):", "", *lines] if lines else [])


def shipped_lines(pack: dict[str, Any]) -> list[str]:
    """The README's table of a pack's methods, all of them measured."""
    headings = ["key", "[paper](docs/papers.md)", "views"]
    headings += [*(COLUMNS[key] for key in (*_RECALLS, "rsum")), "word on object, %"]
    lines = [f"| {' | '.join(headings)} |", "|---|---|---|" + "---:|" * (len(headings) - 3)]
    for name, entry in pack["methods"].items():
        method, values = METHODS[entry.get("method") or name], entry["metrics"]["values"]
        paper = f"{entry.get('title') or method.title}, {method.paper.partition(', ')[2]}"
        views = f"{entry['arguments'].get('views', 1)} x {entry['arguments']['embed_dim']}"
        numbers = [f"{values[key]:.1f}" for key in (*_RECALLS, "rsum", "evidence_word_pointing")]
        lines.append(f"| {' | '.join([f'`{name}`', paper, views, *numbers])} |")
    return [*lines, "", _about(pack)]


def study_line(title: str, result: dict[str, Any]) -> str:
    """A study in one line: each row's rsum over its seeds, and how far it is from the baseline."""
    rows = [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]
    baseline = next(h for h in result["columns"] if h.startswith("above "))
    parts = []
    for row in sorted(rows, key=lambda row: -row["rsum"]):
        part = f"{row['recipe']} {row['rsum']:.1f}"
        if row["its deviation"] is not None:
            part += f" ± {row['its deviation']:.1f}"
        if row[baseline] is not None:
            part += f" ({row[baseline]:+.1f}, {row['low']:+.1f} to {row['high']:+.1f})"
        parts.append(part)
    return f"- **{title}** (`{result['command']}`, {result['hardware']}): {'; '.join(parts)}."


def method_lines(pack: dict[str, Any]) -> list[str]:
    """The table of a pack's methods, as Markdown."""
    measured = {name: m["metrics"] for name, m in pack["methods"].items() if m["metrics"]}
    if not measured:
        return ["No method was measured yet."]
    keys = [k for k in MAIN_COLUMNS if all(k in m["values"] for m in measured.values())]
    rows = [
        [f"`{name}`", *(round(m["values"][k], 1) for k in keys)] for name, m in measured.items()
    ]
    return [*table_lines(["method", *(COLUMNS[k] for k in keys)], rows), "", _about(pack)]


def _about(pack: dict[str, Any]) -> str:
    """Seeds, splits and hardware of what was measured."""
    measured = [entry["metrics"] for entry in pack["methods"].values() if entry["metrics"]]
    about = sorted({f"{m['split']} split, {m['hardware']}" for m in measured})
    seeds = _seeds(sorted({m["seed"] for m in measured}))
    return f"{seeds.capitalize()}; {'; '.join(about)}."


def ablation_lines(result: dict[str, Any]) -> list[str]:
    """An ablation's section, as Markdown."""
    lines = [
        f"### {result['title']}",
        "",
        f"**The paper:** {result['paper']}",
        "",
        f"**It found:** {result['found']}",
        "",
        *table_lines(result["columns"], result["rows"]),
        "",
        *([f"**Here:** {result['here']}", ""] if result.get("here") else []),
        f"`{result['command']}`, {_seeds(result['seeds'])}, {result['hardware']}. {result['note']}",
        "",
    ]
    if result.get("curves"):
        lines += ["Learned coefficients, from the largest value on:", ""]
        lines += [_curve_line(label, curve) for label, curve in result["curves"].items()]
        lines.append("")
    return lines


def table_lines(headings: list[str], rows: list[list[Any]]) -> list[str]:
    """A Markdown table; the first column holds words, the others numbers or None."""
    lines = [f"| {' | '.join(headings)} |", "|---|" + "---:|" * (len(headings) - 1)]
    for label, *values in rows:
        cells = ["-" if value is None else f"{value:,}" for value in values]
        lines.append(f"| {' | '.join([label, *cells])} |")
    return lines


def _seeds(seeds: list[int]) -> str:
    *others, last = map(str, seeds)
    return f"seeds {', '.join(others)} and {last}" if others else f"seed {last}"


def _curve_line(label: str, curve: list[float]) -> str:
    shown = ", ".join(f"{value:.3f}" for value in curve[:CURVE_SHOWN])
    rest = len(curve) - CURVE_SHOWN
    tail = f", and {sum(curve[CURVE_SHOWN:]):.3f} over the other {rest}" if rest > 0 else ""
    return f"- {label} ({len(curve)} places): {shown}{tail}"


def _read(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); run its command again") from error
    return values


def replace_part(page: Path, part: str, lines: list[str]) -> None:
    """Writes the lines between a part's marks; the rest of the page stays.

    Raises:
        ValueError: the page lacks one of the marks.
    """
    text = page.read_text("utf-8")
    start, end = f"<!-- {part} -->", f"<!-- /{part} -->"
    if start not in text or end not in text.partition(start)[2]:
        raise ValueError(f'{page} lacks the lines "{start}" and "{end}" around its {part}')
    before, _, rest = text.partition(start)
    after = rest.partition(end)[2]
    body = "\n".join(lines).strip()
    between = f"\n{body}\n\n" if body else ""
    write_whole(page, f"{before}{start}\n{between}{end}{after}")
