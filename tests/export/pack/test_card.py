"""The card says what pack.json says, and invents nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from polyview.export.pack import card
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import Metrics, PackInfo
from polyview.models import METHODS
from tests.export.conftest import NAME, TRAINED

METRICS = Metrics(
    split="te|st",
    command="python -m polyview evaluate --pack PACK --method x",
    hardware="2 CPU cores (somebody's)",
    seed=11,
    values={
        **{"t2i_r1": 41.26, "rsum": 432.1, "t2i_map_at_r": 37.0},
        **{"side_rsum": 400.0, "side_rsum_low": 390.0, "foil_swapped_objects": 51.3},
    },
)


def front_matter(text: str) -> dict[str, Any]:
    """The card's metadata, as the Hub reads it."""
    return ModelCard(text).data.to_dict()


def with_metrics(info: PackInfo) -> PackInfo:
    """The pack's description with the first method measured."""
    entry = replace(info.methods[NAME], metrics=METRICS)
    return replace(info, methods={**info.methods, NAME: entry})


def test_front_matter_is_what_the_hub_reads(pack: Path) -> None:
    front = front_matter(card.render(load_info(pack)))
    assert front["license"] == "apache-2.0"
    assert front["pipeline_tag"] == "feature-extraction"
    assert (front["library_name"], front["language"]) == ("polyview", "en")
    assert card.TAG in front["tags"]
    assert set(TRAINED) <= set(front["tags"])
    other = front_matter(card.render(replace(load_info(pack), licence='My "own": licence')))
    assert (other["license"], other["license_name"]) == ("other", "my-own-licence")


def test_metrics_appear_with_command_hardware_and_seed(pack: Path) -> None:
    results = card.render(with_metrics(load_info(pack))).split("## Results")[1].split("##")[0]
    heads, _, *rows = (line for line in results.splitlines() if line.startswith("|"))
    assert heads == f"|  | `{NAME}` |"
    assert rows == [
        "| split | te\\|st |",
        "| text to image R@1 | 41.3 |",
        "| text to image mAP@R | 37.0 |",
        "| rsum, the sum of the six recalls | 432.1 |",
    ]
    assert f"- `{NAME}`: `{METRICS.command}`; {METRICS.hardware}; training seed 11" in results
    assert "Not measured yet" in results
    assert f"`{NAME}`" not in results.split("Not measured yet")[1]


def test_card_of_the_pack_is_the_rendered_one(pack: Path) -> None:
    info = load_info(pack)
    text = (pack / "README.md").read_text("utf-8")
    assert text == card.render(info)
    results = text.split("## Results")[1].split("##")[0]
    assert "Not measured yet" in results
    assert "|" not in results
    for part in (info.title, info.description, info.credits, "## Intended use and limits"):
        assert part in text
    for name in TRAINED:
        assert f"{METHODS[name].title} | {METHODS[name].paper}" in text
