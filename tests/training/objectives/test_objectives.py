"""Objectives: the terms each gives, what they weigh, and what they refuse."""

import pytest
import torch

from polyview.models import METHODS
from polyview.training.objectives import OBJECTIVES, build_objective
from polyview.training.objectives.losses import info_nce, same_image
from polyview.training.objectives.pvse import multiple_instance
from tests.golden.loading import grad
from tests.papers.terms import BATCH, IDS, hinge_triplet, terms_of, views_of


def test_every_method_has_an_objective_but_clip_which_comes_ready_made() -> None:
    assert OBJECTIVES.keys() == METHODS.keys() - {"clip"}
    with pytest.raises(ValueError, match=r'"clip" has no objective.*polyview clip'):
        build_objective("clip", {})


@pytest.mark.parametrize("name", ["vsepp", "vse_infty", "avse"])
def test_the_softmax_cost_is_info_nce_at_the_size_of_hinges(name: str) -> None:
    method, images, texts = views_of(name)
    terms = build_objective(name, {"cost": "softmax", "temperature": 0.2})(
        method, images, texts, IDS, 5
    )
    positives = same_image(IDS, IDS)
    mean = info_nce(method.score(images, texts), positives, 0.2)
    torch.testing.assert_close(terms["softmax"], 2 * BATCH * 0.2 * mean)
    assert terms.keys() - {"softmax"} == ({"regulariser"} if name == "avse" else set())


def test_first_epochs_sum_over_all_negatives() -> None:
    for name in ("vse_infty", "mv_vse", "avse"):
        terms = [terms_of(name, epoch, warmup_epochs=1) for epoch in (0, 1)]
        warm, hard = (sum(each.values()) for each in terms)
        assert warm > hard


def test_another_caption_of_the_image_is_no_negative() -> None:
    ids = torch.tensor([7, 7])
    own = same_image(ids, ids)
    temperature = torch.tensor(0.1, requires_grad=True)
    for loss_of in (
        lambda s: hinge_triplet(s, own, 0.2),
        lambda s: multiple_instance(s, own, 0.2, released=True),
        lambda s: info_nce(s, own, temperature),
    ):
        scores = torch.tensor([[0.5, 0.9], [0.5, 0.9]], requires_grad=True)
        loss = loss_of(scores)
        loss.backward()
        assert loss.item() == 0
        assert grad(scores).abs().sum() == 0
    assert grad(temperature) == 0
