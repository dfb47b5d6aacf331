"""Baselines compute what ours do, and every comparison gets a row."""

import copy
import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import models
from benchmarks import kernels
from benchmarks.baselines import PackedBiGRU, PlainGPO, plain_method, plain_pvse_loss
from models import Views
from models.encoders.bigru import BiGRUTextEncoder
from models.gpo import GPO
from models.layers import l2_normalize
from models.pvse import PVSE
from models.views import lengths_to_mask
from training.objectives.pvse import Polysemous

SMALL = kernels.Sizes(
    batch=6,
    regions=5,
    words=4,
    image_dim=12,
    embed_dim=8,
    vocabulary=20,
    images=7,
    texts=9,
    gallery=11,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_plain_gpo_is_gpo() -> None:
    gpo = GPO.released()
    features, mask = torch.randn(3, 7, 5), lengths_to_mask(torch.tensor([7, 1, 4]), 7)
    torch.testing.assert_close(PlainGPO(gpo)(features, mask)[0], gpo(features, mask)[0])


@pytest.mark.parametrize("name", ["vse_infty", "mv_vse", "avse"])
def test_plain_methods_score_alike(name: str) -> None:
    ours = models.build(name, 12, 8, {"embed_dim": 8, "released_gpo": True}).eval()
    plain = plain_method(copy.deepcopy(ours))
    mask = torch.ones(4, 6, dtype=torch.bool)
    features, words = torch.randn(4, 6, 12), torch.randn(4, 6, 8)
    scores = [
        method.score(method.encode_image(features, mask), method.encode_text(words, mask))
        for method in (ours, plain)
    ]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-4, atol=1e-5)
    assert type(plain) is not type(ours) or name == "vse_infty"


def test_plain_pvse_loss_is_the_objective() -> None:
    method, objective = PVSE(4, 4, 8), Polysemous(released=True)
    images, texts = (
        Views(l2_normalize(torch.randn(5, 2, 8)), extras={"residuals": torch.rand(5, 2, 8)})
        for _ in range(2)
    )
    terms = objective(method, images, texts, torch.arange(5), 0)
    plain = plain_pvse_loss(method, images, texts, torch.eye(5).bool(), objective.diversity)
    torch.testing.assert_close(plain, torch.stack(list(terms.values())).sum())


def test_packed_bigru_is_the_text_encoder() -> None:
    encoder, lengths = BiGRUTextEncoder(20, 6, 8), torch.tensor([2, 5])
    ids = torch.randint(1, 20, (2, 5)) * (torch.arange(5) < lengths[:, None])
    torch.testing.assert_close(PackedBiGRU(encoder)(ids, lengths), encoder(ids, lengths))


@pytest.mark.parametrize("bfloat16", [True, False])
def test_every_comparison_gets_a_row(
    bfloat16: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "computes_in_bfloat16", lambda: bfloat16)
    threads = torch.get_num_threads()
    try:
        assert kernels.main(["--repeats", "0"], SMALL) == 0
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "1 thread(s)" in printed
    rows = re.findall(r".* [\d.]+ +[\d.]+ +[\d.]+x   .*", printed)
    assert len(rows) == 1 + 2 + 6 + 1 + (12 if bfloat16 else 8)
    assert ("no steps in bfloat16" in printed) is not bfloat16


def test_the_products_of_a_step_are_all_there_and_nothing_else() -> None:
    layer, features = torch.nn.Linear(5, 4), torch.randn(3, 5)
    texts = torch.randn(2, 4, 7)

    def run() -> None:
        (layer(features).tanh()[None].expand(2, -1, -1) @ texts).sum().backward()

    alone = kernels.products(run)
    with FlopCounterMode(display=False) as whole:
        run()
    with FlopCounterMode(display=False) as ours:
        alone()
    assert ours.get_total_flops() == whole.get_total_flops() > 0
    with torch.profiler.profile() as profile:
        alone()
    assert not {"aten::tanh", "aten::sum"} & {event.key for event in profile.key_averages()}


def test_no_threads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.main(["--threads", "0"])
    assert "--threads must be at least 1" in capsys.readouterr().err
