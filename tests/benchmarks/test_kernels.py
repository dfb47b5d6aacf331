"""The baselines compute what ours compute, and each comparison prints its ratio."""

import re

import pytest
import torch

from benchmarks import kernels
from polyview.models.avse import AVSE, AVSEConfig
from polyview.models.gpo import GPO
from polyview.models.views import lengths_to_mask


def test_plain_gpo_is_gpo() -> None:
    gpo = GPO(released=True)
    features, mask = torch.randn(3, 7, 5), lengths_to_mask(torch.tensor([7, 1, 4]), 7)
    torch.testing.assert_close(kernels.plain_gpo(gpo, features, mask), gpo(features, mask))


def test_plain_sinkhorn_scores_alike() -> None:
    method = AVSE(4, 8, AVSEConfig(8, block_dim=4))
    images, texts = (kernels.block_views(torch.randn(5, views, 8), 4) for views in (2, 1))
    expected = kernels.plain_sinkhorn(method, images, texts)
    torch.testing.assert_close(method.score(images, texts), expected, rtol=1e-4, atol=1e-5)


def test_every_comparison_gets_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = kernels.Sizes(batch=6, regions=5, embed_dim=8, images=7, texts=9)
    threads = torch.get_num_threads()
    try:
        assert kernels.main(["--repeats", "0"], sizes) == 0
    finally:
        torch.set_num_threads(threads)
    rows = re.findall(r".* [\d.]+ +[\d.]+ +[\d.]+x   (.*)", capsys.readouterr().out)
    assert rows == [">= 7.5 x", ">= 25 x", ">= 25 x"]
