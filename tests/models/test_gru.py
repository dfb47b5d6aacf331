"""`models.gru` against `torch.nn.GRU`: the same states, and the same gradients."""

import pytest
import torch
from torch import nn

from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.gpo import GPO
from polyview.models.gru import gru_states, trains_on_cpu
from polyview.models.pvse import LastStates


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("lengths", [[9, 1, 4, 6], [1], [5, 5], [2, 3, 7]])
def test_states_and_gradients_are_those_of_torch(lengths: list[int], directions: int) -> None:
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=directions == 2).double()
    inputs = torch.randn(len(lengths), 9, 5, dtype=torch.float64, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    want = nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=9)[0]
    got = gru_states([gru], inputs, torch.tensor(lengths))
    torch.testing.assert_close(got, want, rtol=0.0, atol=1e-12)
    weights, by = torch.randn_like(want), [inputs, *gru.parameters()]
    for item, other in zip(
        torch.autograd.grad((got * weights).sum(), by),
        torch.autograd.grad((want * weights).sum(), by),
        strict=True,
    ):
        torch.testing.assert_close(item, other, rtol=0.0, atol=1e-11)


def test_what_trains_gives_what_it_gives_in_use() -> None:
    ids, lengths = torch.randint(1, 20, (4, 7)), torch.tensor([7, 2, 5, 1])
    rows, mask = torch.randn(3, 5, 6), torch.rand(3, 5) > 0.4
    mask[:, 2] = True
    encoders = [BiGRUTextEncoder(20, 6, 8, directions=count) for count in (1, 2)]
    states, gpo = [LastStates(6, 8, legacy=legacy) for legacy in (False, True)], GPO()

    def outputs() -> list[torch.Tensor]:
        read = [encoder(ids, lengths) for encoder in encoders]
        return [*read, *(module(rows, mask) for module in states), gpo.coefficients(lengths)]

    trained = outputs()
    with torch.no_grad():
        torch.testing.assert_close(trained, outputs(), rtol=0.0, atol=1e-6)


def test_only_training_in_full_precision_on_a_cpu_uses_it() -> None:
    module, rows = nn.Identity(), torch.zeros(1)
    assert trains_on_cpu(module, rows)
    with torch.no_grad():
        assert not trains_on_cpu(module, rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert not trains_on_cpu(module, rows)
    assert not trains_on_cpu(module.eval(), rows)
