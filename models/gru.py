"""A GRU over short sequences with a hand-written backward pass, for training on a CPU.

Kyunghyun Cho, Bart van Merriënboer, Caglar Gulcehre, Dzmitry Bahdanau, Fethi Bougares, Holger
Schwenk, Yoshua Bengio: Learning Phrase Representations using RNN Encoder-Decoder for Statistical
Machine Translation, EMNLP 2014, Eqs. (5) to (8), as `torch.nn.GRU` writes them:

    r_t = sigmoid(W_ir x_t + b_ir + W_hr h_(t-1) + b_hr)
    z_t = sigmoid(W_iz x_t + b_iz + W_hz h_(t-1) + b_hz)
    n_t = tanh(W_in x_t + b_in + r_t * (W_hn h_(t-1) + b_hn))
    h_t = (1 - z_t) * n_t + z_t * h_(t-1)

On a CPU each step of `torch.nn.GRU` takes about thirty small operations forward and backward, and
in a small network the calls take longer than the arithmetic. This implementation advances both
directions together and takes five operations forward and four backward for each step: it computes
values that do not depend on the previous step for all steps at once, and skips padding.

Shape letters in addition to those of `models/views.py`: T is the padded length of the inputs,
T' <= T the length of the longest sequence, G the number of directions, h the width of a state, L
the number of elements of all sequences.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def bigru_states(gru: nn.GRU, inputs: Tensor, lengths: Tensor) -> Tensor:
    """Returns the states of a bidirectional `batch_first` GRU; uses `gru_states` if it is faster.

    Inputs are (B, T, d), lengths (B,) in 1..T. States are (B, T, 2 h) from `gru_states`, otherwise
    (B, T', 2 h), where T' = max(lengths). They are 0 after the end of a sequence.
    """
    if trains_on_cpu(gru, inputs):
        return gru_states([gru], inputs, lengths)
    packed = nn.utils.rnn.pack_padded_sequence(
        inputs, lengths.cpu(), batch_first=True, enforce_sorted=False
    )
    return nn.utils.rnn.pad_packed_sequence(gru(packed)[0], batch_first=True)[0]


def trains_on_cpu(module: nn.Module, inputs: Tensor) -> bool:
    """Returns whether a module trains in full precision on a CPU, where `gru_states` is faster."""
    low_precision = torch.is_autocast_enabled(inputs.device.type)
    trains = module.training and torch.is_grad_enabled()
    return trains and inputs.device.type == "cpu" and not low_precision


def gru_states(grus: Sequence[nn.GRU], inputs: Tensor, lengths: Tensor) -> Tensor:
    """Returns the states of one-layer GRUs, equal to those of `torch.nn.GRU` over packed sequences.

    `grus` holds one bidirectional GRU, or a forward GRU and optionally a backward GRU, with biases.
    Inputs are (B, T, d), lengths (B,) in 1..T. Returns (B, T, G h), the states of G directions, 0
    after the end of a sequence.
    """
    batch, padded_length, _ = inputs.shape
    sorted_lengths, order = lengths.sort(descending=True, stable=True)  # (B,) each
    steps = torch.arange(int(sorted_lengths[0]), device=inputs.device)[:, None]  # (T', 1)
    is_active = steps < sorted_lengths  # (T', B), whether a sequence has this step
    # the backward direction counts steps from the end of each sequence
    step_positions = (steps, sorted_lengths - 1 - steps)  # (T', 1), (T', B)
    # (L,) each: indices into the flattened inputs (B T, d), ordered by step
    indices = [(order * padded_length + positions)[is_active] for positions in step_positions]
    weights = [direction for gru in grus for direction in gru.all_weights]
    indices = indices[: len(weights)]  # without the backward direction if there is none
    w_input, w_state, b_input, b_state = map(torch.stack, zip(*weights, strict=True))
    rows = inputs.flatten(0, 1).index_select(0, torch.cat(indices))  # (G L, d)
    rows = rows.unflatten(0, (len(indices), -1))  # (G, L, d)
    input_terms = torch.baddbmm(b_input[:, None], rows, w_input.transpose(1, 2))  # (G, L, 3 h)
    counts = is_active.sum(dim=1).tolist()
    states = _Recurrence.apply(input_terms, w_state.mT, b_state[:, None], counts)  # (G, L, h)
    zeros = inputs.new_zeros(batch * padded_length, states.shape[-1])
    outputs = [zeros.index_copy(0, *pair) for pair in zip(indices, states, strict=True)]
    return torch.cat(outputs, dim=-1).unflatten(0, (batch, padded_length))  # (B, T, G h)


class _Recurrence(Function):
    """Computes the states (G, L, h) of G GRUs that start from 0; gates are ordered r, z, n.

    Args:
        input_terms: (G, L, 3 h), W_i x + b_i of G directions, ordered by step.
        weight: (G, h, 3 h), W_h transposed.
        bias: (G, 1, 3 h), b_h.
        counts: the number of sequences in each step, in descending order; they sum to L.
    """

    @staticmethod
    def forward(
        ctx: Any, input_terms: Tensor, weight: Tensor, bias: Tensor, counts: list[int]
    ) -> Tensor:
        width = weight.shape[1]
        previous = input_terms.new_zeros(*input_terms.shape[:2], width)  # h_(t-1) of every row
        states = torch.empty_like(previous)
        gates = input_terms.new_empty(*input_terms.shape[:2], 4 * width)  # r, z, W_hn h + b_hn, n
        r, z, state_term_of_n, n = gates.chunk(4, dim=-1)
        state_terms, r_and_z = gates[..., : 3 * width], gates[..., : 2 * width]  # share memory
        inputs_of_r_and_z, inputs_of_n = input_terms.split([2 * width, width], dim=-1)
        latest_states = previous[:, :0]
        tensors = (previous, states, state_terms, r_and_z, inputs_of_r_and_z, inputs_of_n)
        for h_before, h_t, state_terms_t, r_z, in_r_z, in_n, r_t, z_t, state_n, n_t in _steps(
            counts, *tensors, r, z, state_term_of_n, n
        ):
            if latest_states.shape[1]:  # sequences that have ended come last
                h_before.copy_(latest_states[:, : h_before.shape[1]])
            state_terms_t.copy_(torch.baddbmm(bias, h_before, weight))
            r_z.add_(in_r_z).sigmoid_()
            torch.addcmul(in_n, r_t, state_n, out=n_t).tanh_()
            latest_states = torch.lerp(n_t, h_before, z_t, out=h_t)  # (1 - z) n + z h_(t-1)
        ctx.save_for_backward(previous, gates, weight)
        ctx.counts = counts
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of `input_terms`, `weight` and `bias`."""
        (grad,) = grads  # (G, L, h)
        previous, gates, weight = ctx.saved_tensors
        r, z, state_term_of_n, n = gates.chunk(4, dim=-1)  # (G, L, h) each
        tanh_slope = (1 - z) * (1 - n * n)  # derivative of h_t with respect to the input of tanh
        # derivatives of h_t with respect to the sigmoids' inputs (r and z), and to W_hn h + b_hn
        slopes = gates.new_empty(*r.shape[:2], 3, r.shape[-1])
        torch.mul(tanh_slope, r, out=slopes[..., 2, :])
        torch.mul(previous - n, z * (1 - z), out=slopes[..., 1, :])
        torch.mul(slopes[..., 2, :] * (1 - r), state_term_of_n, out=slopes[..., 0, :])
        gate_grads = torch.empty_like(slopes)
        state_grads = grad.clone()  # gradients of h_t; the loop adds those of later steps
        w_h, later_grad = weight.transpose(1, 2), grad[:, :0]
        tensors = (state_grads, slopes, gate_grads, z)
        for state_grad, slope, gate_grad, z_t in reversed([*_steps(ctx.counts, *tensors)]):
            state_grad[:, : later_grad.shape[1]] += later_grad
            torch.mul(slope, state_grad[..., None, :], out=gate_grad)
            later_grad = torch.baddbmm(state_grad * z_t, gate_grad.flatten(-2), w_h)
        gate_grads = gate_grads.flatten(-2)  # (G, L, 3 h)
        weight_grad = previous.transpose(1, 2) @ gate_grads
        bias_grad = gate_grads.sum(dim=1, keepdim=True)
        # in h_t, r is a factor of W_hn h + b_hn but not of W_in x + b_in
        torch.mul(state_grads, tanh_slope, out=gate_grads[..., 2 * r.shape[-1] :])
        return gate_grads, weight_grad, bias_grad, None


def _steps(counts: list[int], *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields the slices (G, count, ...) of tensors (G, L, ...) at each step; `counts` sum to L."""
    return zip(*(tensor.split(counts, dim=1) for tensor in tensors), strict=True)
