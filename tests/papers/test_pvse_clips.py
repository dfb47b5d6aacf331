"""PVSE's video side, against loops written from the paper."""

import pytest
import torch
from torch import Tensor

from polyview.models.pvse import PVSE, Changes, LastStates
from polyview.models.views import lengths_to_mask
from tests import reference

CLIPS = (8, 1, 3, 5)  # frames of each


def clips() -> tuple[Tensor, Tensor]:
    """Frames (4, 8, 10) and their mask; what lies beyond a clip's end is large."""
    torch.manual_seed(8)
    mask = lengths_to_mask(torch.tensor(CLIPS), 8)
    return torch.where(mask[..., None], torch.randn(4, 8, 10), torch.tensor(1e3)), mask


@pytest.mark.parametrize("views", [1, 3])
def test_clips_equal_the_loop(views: int) -> None:
    """Section 3.1's video encoder, and Eqs. (2)-(4) over its frames."""
    frames, mask = clips()
    method = PVSE(10, 6, 8, views, image_global="states").eval()
    assert isinstance(method.image_global, LastStates)
    assert method.image_net is not None
    with torch.no_grad():
        made = method.encode_image(frames, mask, attention=True)
        assert made.attention is not None
        assert made.embeddings.shape == (4, views, 8)
        for clip, size in enumerate(CLIPS):
            own = frames[clip, :size]
            whole = reference.last_states(method.image_global.gru, own)
            expected = reference.pie_net(method.image_net, own, whole)
            expected = expected / expected.norm(dim=1, keepdim=True)
            torch.testing.assert_close(made.embeddings[clip], expected, rtol=1e-5, atol=1e-5)
            assert not made.attention[clip, :, size:].any()


def test_a_clip_played_backwards_is_another() -> None:
    frames, mask = clips()
    kinds = (("mean", True), ("states", False), ("legacy", False), ("changes", False))
    for kind, alike in kinds:
        method = PVSE(10, 6, 8, image_global=kind).eval()
        assert method.order_matters != alike
        ahead, back = (method.encode_image(x[:1], mask[:1]) for x in (frames, frames.flip(1)))
        same = torch.allclose(ahead.embeddings, back.embeddings, atol=1e-5)
        assert same == alike


def test_changes_are_the_mean_and_the_states_of_what_differs_from_it() -> None:
    frames, mask = clips()
    method = PVSE(10, 6, 8, image_global="changes").eval()
    assert isinstance(method.image_global, Changes)
    with torch.no_grad():
        made = method.image_global(frames, mask)
        for clip, size in enumerate(CLIPS):
            own = frames[clip, :size]
            mean = method.image_global.project(own).mean(dim=0)
            changes = method.image_global.project(own) - mean
            moved = reference.last_states(method.image_global.states.gru, changes)
            torch.testing.assert_close(made[clip], mean + moved)
        still = frames[:1, :1].expand(-1, 8, -1)  # eight equal frames have no changes either
        whole = method.image_global(still, mask[:1]) - method.image_global.project(still[:, 0])
        nothing = reference.last_states(method.image_global.states.gru, torch.zeros(8, 8))
    torch.testing.assert_close(whole[0], nothing)
