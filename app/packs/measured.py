"""What a pack's methods reached and cost, as one table: the Benchmark tab's and /benchmark's."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from app.packs import ablations, speed
from app.packs.description import describe_method
from app.packs.speed import Speed
from app.search.retriever import Retriever

QUERY_MS = "query_ms"
MEGABYTES = "megabytes"
RSUM = "rsum"
_SIZE = "view_numbers"
_SOURCE = ("split", "command", "hardware", "seed")


@dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        key: its name in programs.
        title: its title, short.
        group: what stands above it and its neighbours.
        digits: shown after the point.
        best: which value is best, if that can be said.
        meaning: what it is, in a sentence.
    """

    key: str
    title: str
    group: str
    digits: int
    best: Literal["highest", "lowest", ""]
    meaning: str

    def show(self, value: float) -> str:
        """A value as it is shown.

        >>> COLUMNS[0].show(64.53999)
        '64.5'
        """
        return f"{value:,.{self.digits}f}"


def _direction(key: str, group: str, asked: str, wanted: str) -> list[Column]:
    """The columns of one direction of retrieval."""
    recalls = [
        Column(f"{key}_r{k}", f"R@{k}", group, 1, "highest",
               f"Percent of {asked} for which {wanted} is among the first {k}.")
        for k in (1, 5, 10)
    ]  # fmt: skip
    return [
        *recalls,
        Column(f"{key}_rprecision", "R-P", group, 1, "highest",
               f"R-precision: of the first R found, percent that are right, where R counts "
               f"everything that is right for {asked}."),
        Column(f"{key}_map_at_r", "mAP@R", group, 1, "highest",
               "Mean average precision over the first R: as R-precision, but order counts."),
        Column(f"{key}_medr", "MedR", group, 1, "lowest",
               f"Median rank of {wanted}; 1 is the best there can be."),
    ]  # fmt: skip


COLUMNS = (
    *_direction("t2i", "Text to picture", "captions", "the picture it was written for"),
    *_direction("i2t", "Picture to text", "pictures", "one of its captions"),
    Column(RSUM, "rsum", "Overall", 1, "highest", "The six R@K added up; 600 is the most."),
    Column("pointing", "points", "Overall", 1, "highest",
           "Percent of captions for which the map of the winning view peaks on an object that the "
           "caption mentions."),
    Column("evidence_pointing", "evidence", "Overall", 1, "highest",
           "Percent of captions of which the evidence, all words together, peaks on an object that "
           "the caption mentions."),
    Column("evidence_word_pointing", "of words", "Overall", 1, "highest",
           "Percent of words that name an object whose own evidence peaks on such an object."),
    Column("refused_absent_thing", "absent", "Overall", 1, "highest",
           "Percent of questions for one thing that no picture shows which are told that nothing "
           "matches."),
    Column(QUERY_MS, "ms", "Cost", 2, "lowest",
           "Median milliseconds of one text query, from the words to the ten best pictures."),
    Column(MEGABYTES, "MB", "Cost", 2, "lowest", "Text encoder and heads on disk, in megabytes; "
           "all methods share the image encoder."),
    Column("parameters", "params", "Cost", 0, "lowest",
           "Numbers learned in the heads, the text encoder not counted."),
    Column(_SIZE, "views", "Cost", 0, "",
           "Views of a picture x dimensions of a view: what is kept for every picture."),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
        name: its key in the pack.
        title: what people call it.
        paper: authors, venue and year.
        values: its numbers by column key; what was not measured is missing.
        shape: views x dimensions, or empty while no picture was read.
        source: `split`, `command`, `hardware` and `seed` of the numbers, or None.
        calibrated: the same of how many absent things are refused.
    """

    name: str
    title: str
    paper: str
    values: dict[str, float]
    shape: str
    source: dict[str, Any] | None
    calibrated: dict[str, Any] | None = None

    def show(self, column: Column) -> str:
        """A value as it is shown; empty where there is none."""
        if column.key == _SIZE:
            return self.shape
        return column.show(self.values[column.key]) if column.key in self.values else ""


@dataclass(frozen=True)
class Table:
    """Every method of a pack, and the columns for which there is a number."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def best(self, column: Column) -> frozenset[str]:
        """The methods with the best value as shown; none where all of them have it."""
        shown = {row.name: float(row.show(column).replace(",", "")) for row in self.rows
                 if column.best and column.key in row.values}  # fmt: skip
        if len(set(shown.values())) < 2:
            return frozenset()
        top = max(shown.values()) if column.best == "highest" else min(shown.values())
        return frozenset(name for name, value in shown.items() if value == top)


def table(retriever: Retriever, measured: Speed | None) -> Table:
    """What is known of a pack's methods.

    Args:
        retriever: the pack.
        measured: how long queries take, where that is known.
    """
    rows = tuple(_row(retriever, name, measured) for name in retriever.methods)
    known = {key for row in rows for key in row.values}
    return Table(tuple(column for column in COLUMNS if column.key in known), rows)


def as_json(retriever: Retriever) -> dict[str, Any]:
    """What /benchmark answers."""
    info = retriever.info
    measured = speed.recorded(info)
    found = table(retriever, measured)
    tables, problems = ablations.load(info)
    return {
        "pack": info.name,
        "checksum": info.checksum,
        "columns": [asdict(column) for column in found.columns],
        "methods": {
            row.name: {
                "title": row.title,
                "paper": row.paper,
                "values": row.values,
                "measured": row.source,
            }
            for row in found.rows
        },
        "speed": None if measured is None else asdict(measured),
        "ablations": [asdict(ablation) for ablation in tables],
        "problems": problems,
    }


def _row(retriever: Retriever, name: str, measured: Speed | None) -> Row:
    about = describe_method(retriever, name)
    metrics = about["metrics"]
    values: dict[str, float] = {} if metrics is None else _known(metrics["values"])
    if measured is not None and name in measured.median:
        values[QUERY_MS] = measured.median[name]
    values[MEGABYTES] = (about["head_bytes"] + about["text_encoder_bytes"]) / 1e6
    values["parameters"] = about["head_parameters"]
    shape = ""
    if about["views"]:
        values[_SIZE] = about["views"] * about["dim"]
        shape = f"{about['views']} × {about['dim']}"  # noqa: RUF001
    sure = retriever.info.methods[name].calibration_metrics
    if sure is not None:
        values |= {
            key: 100 * value if key.startswith("refused") else value
            for key, value in _known(sure.values).items()
        }
    source = None
    if metrics is not None:
        source = {key: metrics[key] for key in _SOURCE}
    calibrated = None if sure is None else {key: getattr(sure, key) for key in _SOURCE}
    return Row(name, about["title"], about["paper"], values, shape, source, calibrated)


def _known(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics that have a column."""
    return {column.key: values[column.key] for column in COLUMNS if column.key in values}
