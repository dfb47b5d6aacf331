"""What an evaluation prints: the table of recalls, the views, and differences with intervals."""

import math

COLUMNS = {
    "i2t_r1": "i2t R@1",
    "i2t_r5": "R@5",
    "i2t_r10": "R@10",
    "t2i_r1": "t2i R@1",
    "t2i_r5": "R@5",
    "t2i_r10": "R@10",
    "rsum": "rsum",
    "p_at_5": "P@5",
    "first_right": "first right",
    "tau_c": "tau-c",
    "i2t_medr": "i2t MedR",
    "t2i_medr": "t2i MedR",
    "i2t_meanr": "i2t MeanR",
    "t2i_meanr": "t2i MeanR",
    "i2t_nmr": "i2t nMR",
    "t2i_nmr": "t2i nMR",
    "t2i_rprecision": "t2i R-P",
    "t2i_map_at_r": "t2i mAP@R",
    "i2t_rprecision": "i2t R-P",
    "i2t_map_at_r": "i2t mAP@R",
}

EVIDENCE = {
    "evidence_pointing": "points at a mentioned object, %",
    "evidence_chance": "chance",
    "evidence_random_head": "random heads",
    "evidence_word_pointing": "a word points at its object, %",
    "evidence_word_chance": "chance",
    "deletion": "deletion",
    "deletion_random": "at random",
    "deletion_map": "by the paper's map",
    "deletion_renewed": "deletion, renewed",
    "deletion_renewed_map": "by the map, renewed",
    "insertion": "insertion",
    "insertion_random": "at random",
    "insertion_map": "by the paper's map",
    "evidence_error": "error",
    "moment_pointing": "peaks in a frame with a mentioned object, %",
    "moment_chance": "chance",
    "moment_word_pointing": "a word peaks where its object is, %",
    "moment_word_chance": "chance",
}
AREAS = {"deletion": "lower", "deletion_renewed": "lower", "insertion": "higher"}

CERTAINTY = {
    "area": "area",
    "precision": "precision",
    "coverage": "coverage",
    "ece": "ECE",
    "refused_caption": "refused: captions",
    "refused_thing": "things",
    "refused_absent_caption": "absent captions",
    "refused_absent_thing": "absent things",
    "refused_gibberish": "gibberish",
    "refused_unknown": "unknown things",
    "refused_random": "random words",
}

UNMEASURED = (
    "{}: faithfulness was not measured; it needs a mask for every image and attention maps."
)


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Prints one line a method, as wide as the metrics there are."""
    columns = [key for key in COLUMNS if all(key in row for row in rows.values())]
    digits = {key: 4 if key.endswith("nmr") else 1 for key in columns}
    digits |= {"p_at_5": 2, "first_right": 2}
    print("| method | " + " | ".join(COLUMNS[key] for key in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[key]:.{digits[key]}f}" for key in columns) + " |")


def print_views(rows: dict[str, dict[str, float]]) -> None:
    """Prints one line a view, in percent, and for each method what its views have in common.

    Args:
        rows: for each method `view_statistics`, with `faithfulness` where it was measured.
    """
    print("\n| view | wins | points at a mentioned object | attention on mentioned objects |")
    print("|---|---:|---:|---:|")
    for name, row in rows.items():
        for view in range(1, _count(row) + 1):
            _print_view(f"{name} {view}", row, f"_{view}")
        if "pointing" in row:
            _print_view(f"{name}, the winning view", row, "")
            _print_view(f"{name}, chance", row, "_chance")
    print()
    for name, row in rows.items():
        most = math.log2(_count(row))
        line = f"{name}: entropy of the wins {row['wins_entropy']:.2f} of {most:.2f} bits"
        if "view_cosine" in row:
            line += f", mean cosine between two views of an image {row['view_cosine']:.3f}"
        print(line)
        if "pointing" not in row:
            print(UNMEASURED.format(name))


def print_evidence(rows: dict[str, dict[str, float]]) -> None:
    """Prints one line a method of what `evidence_metrics` measured, and the gains' intervals."""
    columns = [key for key in EVIDENCE if any(key in row for row in rows.values())]
    print("\n| evidence of | " + " | ".join(EVIDENCE[key] for key in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, row in rows.items():
        cells = [f"{row[key]:{_digits(key)}}" if key in row else "" for key in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()
    for name, row in rows.items():
        for curve, way in AREAS.items():
            gains = [
                f"{row[f'{gain}_low']:.3f} to {row[f'{gain}_high']:.3f} {way} than {words}"
                for other, words in (("random", "at random"), ("map", "by the paper's map"))
                if f"{(gain := f'{curve}_gain_{other}')}_low" in row
            ]
            if gains:
                print(f"{name}: {curve} {', '.join(gains)} (95 % intervals)")


def _digits(key: str) -> str:
    """How a value of `EVIDENCE` is printed."""
    if key == "evidence_error":
        return ".0e"
    return ".1f" if key.startswith(("evidence", "moment")) else ".3f"


def _count(row: dict[str, float]) -> int:
    """V, the number of views."""
    return sum(key.startswith("wins_") for key in row) - 1  # without the entropy


def _print_view(title: str, row: dict[str, float], suffix: str) -> None:
    keys = [f"{name}{suffix}" for name in ("wins", "pointing", "mass")]
    cells = [f"{row[key]:.1f}" if key in row else "" for key in keys]
    print(f"| {title} | " + " | ".join(cells) + " |")


def print_difference(a: str, b: str, found: dict[str, float], kind: str = "") -> None:
    """Prints what `bootstrap_difference` found between two methods in one line.

    A `kind` names the captions that alone were measured.
    """
    print(
        f"{a} - {b}{f', {kind}' if kind else ''}: rsum {found['difference']:+.1f}, 95 % interval "
        f"[{found['low']:+.1f}, {found['high']:+.1f}], above 0 in "
        f"{100 * found['share_above']:.1f} % of the samples"
    )


def print_certainty(rows: dict[str, dict[str, float]]) -> None:
    """Prints how true each method's calibration is, one line a method; shares are in percent."""
    if not rows:
        return
    columns = [key for key in CERTAINTY if all(key in row for row in rows.values())]
    print("| method | " + " | ".join(CERTAINTY[key] for key in columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, row in rows.items():
        shown = [
            f"{row[key]:.3f}" if key in ("area", "ece") else f"{100 * row[key]:.1f}"
            for key in columns
        ]
        print(f"| {name} | " + " | ".join(shown) + " |")
