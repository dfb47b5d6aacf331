"""`models.gru` against `torch.nn.GRU`: the same states, and the same gradients."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.gpo import GPO
from polyview.models.gru import gru_states, trains_on_cpu
from polyview.models.pvse import LastStates

LENGTHS = [[9, 1, 4, 6], [1], [5, 5], [2, 3, 7]]


def packed_states(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, lengths, batch_first=True, enforce_sorted=False
    )
    return nn.utils.rnn.pad_packed_sequence(
        gru(packed)[0], batch_first=True, total_length=inputs.shape[1]
    )[0]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_and_gradients_are_those_of_torch(lengths: list[int], directions: int) -> None:
    torch.manual_seed(len(lengths))
    gru = nn.GRU(5, 7, batch_first=True, bidirectional=directions == 2).double()
    inputs = torch.randn(len(lengths), 9, 5, dtype=torch.float64, requires_grad=True)
    counts, by = torch.tensor(lengths), [inputs, *gru.parameters()]
    want = packed_states(gru, inputs, counts)
    got = gru_states([gru], inputs, counts)
    torch.testing.assert_close(got, want, rtol=0.0, atol=1e-12)
    weights = torch.randn_like(want)
    for item, other in zip(
        torch.autograd.grad((got * weights).sum(), by),
        torch.autograd.grad((want * weights).sum(), by),
        strict=True,
    ):
        torch.testing.assert_close(item, other, rtol=0.0, atol=1e-11)


@pytest.mark.parametrize(
    "module",
    [
        BiGRUTextEncoder(20, 6, 8, directions=1),
        BiGRUTextEncoder(20, 6, 8),
        LastStates(6, 8),
        LastStates(6, 8, legacy=True),
        GPO(),
    ],
)
def test_what_trains_gives_what_it_gives_in_use(module: nn.Module) -> None:
    torch.manual_seed(0)
    inputs = torch.randint(1, 20, (4, 7)), torch.tensor([7, 2, 5, 1])
    if isinstance(module, LastStates):
        inputs = torch.randn(3, 5, 6), torch.rand(3, 5) > 0.4
        inputs[1][:, 2] = True
    run = partial(module.coefficients, inputs[1]) if isinstance(module, GPO) else module
    trained = run(*([] if isinstance(module, GPO) else inputs))
    with torch.no_grad():
        again = run(*([] if isinstance(module, GPO) else inputs))
    torch.testing.assert_close(trained, again, rtol=0.0, atol=1e-6)


def test_only_training_in_full_precision_on_a_cpu_uses_it() -> None:
    module, rows = nn.Identity(), torch.zeros(1)
    assert trains_on_cpu(module, rows)
    with torch.no_grad():
        assert not trains_on_cpu(module, rows)
    with torch.autocast("cpu", torch.bfloat16):
        assert not trains_on_cpu(module, rows)
    assert not trains_on_cpu(module.eval(), rows)
