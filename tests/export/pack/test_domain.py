"""Images that are unlike a pack's own are told from those that are like them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyview.export.pack.calibration import Domain
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import parse_info
from polyview.export.pack.validation import PackError
from polyview.export.runtime import Runtime

ROOT = Path(__file__).parents[3]


def test_the_bundled_scenes_know_their_own_and_wonder_at_noise() -> None:
    runtime = Runtime.load(ROOT / "app/bundled/scenes", "cpu")
    images = ROOT / "app/bundled/scenes/gallery/images"
    own = [Image.open(images / f"test-{i:06}.webp") for i in range(0, 1000, 50)]
    noise = np.random.default_rng(0).integers(256, size=(2, 64, 96, 3), dtype=np.uint8)
    others = [*map(Image.fromarray, noise), Image.new("L", (50, 70), 255)]
    known, unknown = runtime.unfamiliar(own), runtime.unfamiliar(others)
    assert known is not None
    assert unknown is not None
    assert known.mean() <= 0.1
    assert unknown.all()


@pytest.mark.parametrize(
    "change", [{"mean": [0.0] * 23}, {"deviation": [0.0] * 24}, {"limit": 0}, {"limit": None}]
)
def test_a_domain_that_makes_no_sense_is_refused(pack: Path, change: dict[str, Any]) -> None:
    manifest = json.loads((pack / "pack.json").read_text("utf-8"))
    good = {"mean": [0.0] * 24, "deviation": [1.0] * 24, "limit": 1.5}
    whole = parse_info({**manifest, "domain": good}, pack)
    assert whole.domain == Domain((0.0,) * 24, (1.0,) * 24, 1.5)
    assert whole.checksum == load_info(pack).checksum
    assert "domain" not in manifest
    assert Runtime.load(pack, "cpu").unfamiliar([Image.new("RGB", (64, 64))]) is None
    with pytest.raises(PackError):
        parse_info({**manifest, "domain": good | change}, pack)
