"""Benchmarks of the gallery, indexing and the kernels."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from benchmarks import gallery, indexing, kernels
from polyview.models import Views
from polyview.models.avse import AVSE, AVSEConfig
from polyview.models.gpo import GPO
from polyview.models.views import lengths_to_mask


def test_query_latency(tiny_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = Path(shutil.copytree(tiny_pack, tmp_path / "pack"))
    assert gallery.main(["latency", "--pack", str(pack), "--queries", "5", "--record"]) == 0
    recorded = json.loads((pack.parent / "pack.speed.json").read_text())
    printed = [row.split() for row in capsys.readouterr().out.splitlines()[-2:]]
    medians = {name: f"{ms:.2f}" for name, ms in recorded["median"].items()}
    assert medians == {name: p50 for name, p50, *_ in printed}
    assert recorded["queries"] == 5


def test_the_index_has_the_hits_of_brute_force(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["index", "--sizes", "600", "--rules", "max", "sinkhorn", "--queries", "3"]
    assert gallery.main(arguments) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[-4:]]
    assert [row[:2] for row in rows] == [["max", "600"]] * 2 + [["sinkhorn", "600"]] * 2
    for row in rows[1::2]:
        recall, p50, p95, rate = map(float, row[-4:])
        assert recall == 1.0
        assert 0 < p50 <= p95
        assert rate > 0
    arguments = ["mistakes", "--sizes", "600", "--rules", "max", "--queries", "7"]
    assert gallery.main(arguments) == 0
    assert "max: 7 captions over 600 images in " in capsys.readouterr().out


def test_indexing_is_compared_with_the_encoder_alone(
    tiny_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(5):
        Image.new("RGB", (40, 30), (40 * i, 90, 30)).save(tmp_path / f"{i}.png")
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    arguments = ["--pack", str(tiny_pack), "--gallery", str(tmp_path), "--repeats", "1"]
    assert indexing.main([*arguments, "--images", "6"]) == 0
    lines = capsys.readouterr().out.rpartition("median of the runs")[2].splitlines()[1:]
    rows = {row[:40].strip(): [float(x) for x in row[40:68].split()] for row in lines}
    encoder, _ = rows["encoder alone"]
    assert rows["the app"][0] > 0
    for rate, ratio in rows.values():
        assert ratio == pytest.approx(rate / encoder, abs=0.02)


def test_plain_implementations_equal_the_kernels() -> None:
    gpo = GPO(released=True)
    features, mask = torch.randn(3, 7, 5), lengths_to_mask(torch.tensor([7, 1, 4]), 7)
    torch.testing.assert_close(kernels.plain_gpo(gpo, features, mask), gpo(features, mask))
    method = AVSE(4, 8, AVSEConfig(8, block_dim=4))
    images, texts = (Views(method.unit_blocks(torch.randn(5, views, 8))) for views in (2, 1))
    expected = kernels.plain_sinkhorn(method, images, texts)
    torch.testing.assert_close(method.score(images, texts), expected, rtol=1e-4, atol=1e-5)


def test_kernels_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = kernels.Sizes(batch=6, regions=5, embed_dim=8, images=7, texts=9)
    threads = torch.get_num_threads()
    try:
        assert kernels.main(["--repeats", "1", "--seconds", "0"], sizes) == 0
    finally:
        torch.set_num_threads(threads)
    rows = re.findall(r".* [\d.]+ +[\d.]+ +[\d.]+x   (.*)", capsys.readouterr().out)
    assert rows == [">= 7.5 x", ">= 25 x", ">= 25 x"]
