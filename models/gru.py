"""A GRU over short sequences, with its own backward pass, for training on a CPU.

Kyunghyun Cho, Bart van Merriënboer, Caglar Gulcehre, Dzmitry Bahdanau, Fethi Bougares, Holger
Schwenk, Yoshua Bengio: Learning Phrase Representations using RNN Encoder-Decoder for Statistical
Machine Translation, EMNLP 2014, Eqs. (5) to (8), as `torch.nn.GRU` writes them:

    r_t = sigmoid(W_ir x_t + b_ir + W_hr h_(t-1) + b_hr)
    z_t = sigmoid(W_iz x_t + b_iz + W_hz h_(t-1) + b_hz)
    n_t = tanh(W_in x_t + b_in + r_t * (W_hn h_(t-1) + b_hn))
    h_t = (1 - z_t) * n_t + z_t * h_(t-1)

On a CPU the steps of `torch.nn.GRU` are some thirty small operations each, forward and backward,
and of a small network these calls take longer than the sums. Here both directions go together, and
a step is five operations forward and four backward: whatever does not depend on the step after is
done for all steps at once, and nothing is done past a sequence's end.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def scans(module: nn.Module, inputs: Tensor) -> bool:
    """Whether `gru_states` is what to use: as a module trains in full precision on a CPU."""
    low = torch.is_autocast_enabled(inputs.device.type)
    wanted = module.training and torch.is_grad_enabled()
    return wanted and inputs.device.type == "cpu" and not low


def gru_states(grus: Sequence[nn.GRU], inputs: Tensor, lengths: Tensor) -> Tensor:
    """The states of GRUs of one layer, as they compute them of packed sequences.

    Args:
        grus: with biases: one of both directions, or one that reads a sequence from its start and
            perhaps one that reads it from its end. `batch_first` is of no account.
        inputs: (B, T, d).
        lengths: (B,) integers of 1 to T.

    Returns:
        (B, T, G h): the states of each direction; 0 after a sequence's end.
    """
    batch, longest, _ = inputs.shape
    ordered, order = lengths.sort(descending=True, stable=True)  # (B,) each
    steps = torch.arange(int(ordered[0]), device=inputs.device)[:, None]  # (T', 1)
    there = steps < ordered  # (T', B)
    # rows (L,) of (B T, d), step by step: from a sequence's start, and from its end
    places = [(order * longest + at)[there] for at in (steps, ordered - 1 - steps)]
    weights = [one for gru in grus for one in gru.all_weights]
    places = places[: len(weights)]
    w_in, w_state, b_in, b_state = map(torch.stack, zip(*weights, strict=True))
    rows = inputs.flatten(0, 1).index_select(0, torch.cat(places)).unflatten(0, (len(places), -1))
    given = torch.baddbmm(b_in[:, None], rows, w_in.transpose(1, 2))  # (G, L, 3 h)
    counts = there.sum(dim=1).tolist()
    states = _Scan.apply(given, w_state.transpose(1, 2), b_state[:, None], counts)  # (G, L, h)
    nothing = inputs.new_zeros(batch * longest, states.shape[-1])
    all_states = [nothing.index_copy(0, *one) for one in zip(places, states, strict=True)]
    return torch.cat(all_states, dim=-1).unflatten(0, (batch, longest))


class _Scan(Function):
    """All states of GRUs side by side, each from a state of 0; gates are in the order r, z, n.

    Args:
        given: (G, L, 3 h), what the inputs add to the gates of G networks, step by step.
        weight: (G, h, 3 h).
        bias: (G, 1, 3 h).
        counts: how many sequences each step has, none more than the step before; L in all.

    Returns:
        (G, L, h).
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor, counts: list[int]) -> Tensor:
        width = weight.shape[1]
        before = given.new_zeros(*given.shape[:2], width)  # h_(t-1) of every row
        states = torch.empty_like(before)
        gates = given.new_empty(*given.shape[:2], 4 * width)  # r, z, W h + b, n
        r, z, from_state, new = gates.chunk(4, dim=-1)
        of_state, passes = gates[..., : 3 * width], gates[..., : 2 * width]
        to_passes, to_new = given.split([2 * width, width], dim=-1)
        every = (before, states, of_state, passes, to_passes, to_new, r, z, from_state, new)
        last = before[:, :0]
        for was, state, of, p, to_p, to_n, r_t, z_t, from_t, n in _steps(counts, *every):
            if last.shape[1]:
                was.copy_(last[:, : was.shape[1]])
            of.copy_(torch.baddbmm(bias, was, weight))
            p.add_(to_p).sigmoid_()
            torch.addcmul(to_n, r_t, from_t, out=n).tanh_()
            last = torch.lerp(n, was, z_t, out=state)
        ctx.save_for_backward(before, gates, weight)
        ctx.counts = counts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads  # (G, L, h)
        before, gates, weight = ctx.saved_tensors
        r, z, from_state, new = gates.chunk(4, dim=-1)  # (G, L, h) each
        to_new = (1 - z) * (1 - new * new)  # what a change of h_t is of one before the tanh
        to_gates = gates.new_empty(*r.shape[:2], 3, r.shape[-1])  # r, z, W h + b of n
        torch.mul(to_new, r, out=to_gates[..., 2, :])
        torch.mul(before - new, z * (1 - z), out=to_gates[..., 1, :])
        torch.mul(to_gates[..., 2, :] * (1 - r), from_state, out=to_gates[..., 0, :])
        changes = torch.empty_like(to_gates)
        whole = grad.clone()  # of h_t, with what comes from the steps after
        back, later = weight.transpose(1, 2), grad[:, :0]
        for here, to_t, change, z_t in reversed([*_steps(ctx.counts, whole, to_gates, changes, z)]):
            here[:, : later.shape[1]] += later
            torch.mul(to_t, here[..., None, :], out=change)
            later = torch.baddbmm(here * z_t, change.flatten(-2), back)
        changes = changes.flatten(-2)  # (G, L, 3 h)
        of_weight, of_bias = before.transpose(1, 2) @ changes, changes.sum(dim=1, keepdim=True)
        torch.mul(whole, to_new, out=changes[..., 2 * r.shape[-1] :])  # without r
        return changes, of_weight, of_bias, None


def _steps(counts: list[int], *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of each step, of tensors (G, L, ...)."""
    return zip(*(one.split(counts, dim=1) for one in rows), strict=True)
