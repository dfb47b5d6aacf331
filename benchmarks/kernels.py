"""Compares GPO and AVSE's Sinkhorn with the authors' code: `python -m benchmarks.kernels`.

Both versions run alternately, `--repeats` times in a row, on tensors of the papers' sizes until
`--seconds` have passed. The table has the best time of each. One thread is measured in CPU time,
which excludes other programs. Several threads are measured in wall time. The baselines are the
operations of the releases of VSE-infinity (Chen et al., CVPR 2021) and AVSE (Liu et al., AAAI
2025), with the same weights.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from timeit import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from polyview.models import Views
from polyview.models.avse import AVSE, AVSEConfig
from polyview.models.gpo import GPO
from polyview.models.layers import l2_normalize

Run = Callable[[], object]
Row = tuple[str, Run, Run, str]  # title, baseline, our version, target ratio of their times


class Sizes(NamedTuple):
    """The sizes of the tensors; the defaults are those of the papers."""

    batch: int = 128  # image-text pairs of a training step
    regions: int = 36  # elements of an image's set
    embed_dim: int = 1024  # width of the joint space
    images: int = 1000  # rows of the score matrix
    texts: int = 5000  # columns of the score matrix


def plain_gpo(gpo: GPO, features: Tensor, mask: Tensor) -> Tensor:
    """Computes GPO as in the release: runs the GRU for each set, and sorts along a strided axis.

    Pools features (B, N, D) into (B, D). The mask (B, N) ends with padding. p is `position_dim`.
    """
    sizes, padded_size = mask.sum(dim=1), mask.shape[1]
    k = torch.arange(padded_size)[:, None] + gpo.first_position  # positions
    w = torch.exp(-math.log(1e4) * torch.arange(0, gpo.position_dim, 2) / gpo.position_dim)
    encodings = torch.stack([(k * w).sin(), (k * w).cos()], dim=-1).flatten(1)  # Eq. (4): (N, p)
    inputs = encodings.expand(len(sizes), -1, -1)  # (B, N, p)
    packed = pack_padded_sequence(inputs, sizes, batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(gpo.gru(packed)[0], batch_first=True, total_length=padded_size)
    forward, backward = states.chunk(2, dim=-1)
    scores = gpo.score((forward + backward) / 2).squeeze(-1)  # Eq. (5): (B, N)
    theta = (scores.masked_fill(~mask, -10_000.0) / gpo.temperature).softmax(dim=-1)
    ranked = features.masked_fill(~mask[..., None], -10_000.0).sort(dim=1, descending=True)[0]
    ranked = ranked.masked_fill(~mask[..., None], 0.0)
    return (ranked * theta[..., None]).sum(dim=1)  # Eq. (2)


def plain_sinkhorn(method: AVSE, images: Views, texts: Views) -> Tensor:
    """Computes AVSE's scores (B_img, B_txt) in the log domain, 64 images at a time.

    Each of the C pairs has p image blocks and q text blocks. The method must have a dustbin.
    """
    assert method.dustbin is not None
    image_sets, text_sets = (
        l2_normalize(views.embeddings.unflatten(2, (-1, method.block_dim)).flatten(1, 2))
        for views in (images, texts)
    )
    p, q, z = image_sets.shape[1], text_sets.shape[1], method.dustbin
    row_sums = torch.tensor([1.0] * p + [float(q)]).log()
    column_sums = torch.tensor([1.0] * q + [float(p)]).log()
    scores = []
    for rows in image_sets.split(64):
        cosines = torch.einsum("ipd,tqd->itpq", rows, text_sets).flatten(0, 1)  # (C, p, q), Eq. (1)
        bottom = torch.cat([cosines, z.expand(len(cosines), 1, q)], dim=1)
        augmented = torch.cat([bottom, z.expand(len(cosines), p + 1, 1)], dim=2)
        v = torch.zeros(q + 1)
        for _ in range(method.config.iterations):
            u = row_sums - torch.logsumexp(augmented + v[..., None, :], dim=2)
            v = column_sums - torch.logsumexp(augmented + u[:, :, None], dim=1)
        plan = augmented + u[:, :, None] + v[:, None]  # logarithm, (C, p + 1, q + 1)
        scores.append(plan[:, :-1, :-1].exp().amax(dim=1).sum(dim=1).view(len(rows), -1))  # Eq. (2)
    return torch.cat(scores)


def comparisons(sizes: Sizes) -> Iterator[Row]:
    """Yields comparisons of GPO (forward and backward) and of AVSE (2 or 4 blocks per view)."""
    gpo = GPO(released=True)
    mask = torch.ones(sizes.batch, sizes.regions, dtype=torch.bool)
    features = torch.randn(*mask.shape, sizes.embed_dim, requires_grad=True)
    gradient = torch.randn(sizes.batch, sizes.embed_dim)

    def run(pool: Callable[[Tensor, Tensor], Tensor]) -> None:
        features.grad = None
        pool(features, mask).backward(gradient)

    title = f"GPO, {sizes.batch} x {sizes.regions} x {sizes.embed_dim}, forward and backward"
    yield title, partial(run, partial(plain_gpo, gpo)), partial(run, gpo), ">= 7.5 x"
    for block_count in (2, 4):
        block_dim = sizes.embed_dim // block_count
        method = AVSE(4, sizes.embed_dim, AVSEConfig(sizes.embed_dim, block_dim)).eval()
        images, texts = (
            Views(method.unit_blocks(torch.randn(count, view_count, sizes.embed_dim)))
            for count, view_count in ((sizes.images, 2), (sizes.texts, 1))
        )
        baseline = torch.no_grad()(partial(plain_sinkhorn, method, images, texts))
        ours = torch.no_grad()(partial(method.score, images, texts))
        title = f"Sinkhorn, {sizes.images} x {sizes.texts}, d2 = {block_dim}"
        yield title, baseline, ours, ">= 25 x"


def main(argv: Sequence[str], sizes: Sizes | None = None) -> int:
    """Measures both versions and prints a table; returns the exit status 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: 1)")
    parser.add_argument("--repeats", type=int, default=4, help="consecutive runs (default: 4)")
    parser.add_argument("--seconds", type=float, default=30, help="time for a row (default: 30)")
    options = parser.parse_args(argv)
    if options.threads < 1 or options.repeats < 1 or not options.seconds >= 0:
        parser.error("--threads and --repeats must be at least 1, and --seconds at least 0")
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    measure = partial(repeat, timer=clock, number=1, repeat=options.repeats)
    print(f"torch {torch.__version__}, {options.threads} thread(s), best times")
    print(f"{'':<62} {'baseline ms':>12} {'ours ms':>10} {'ratio':>7}   target")
    torch.manual_seed(0)
    for title, baseline, ours, target in comparisons(sizes or Sizes()):
        baseline_ms, our_ms, end = math.inf, math.inf, time.monotonic() + options.seconds
        while our_ms == math.inf or time.monotonic() < end:
            baseline_ms = min(baseline_ms, 1e3 * min(measure(baseline)))
            our_ms = min(our_ms, 1e3 * min(measure(ours)))
        times = f"{baseline_ms:>12.1f} {our_ms:>10.1f} {baseline_ms / our_ms:>6.1f}x"
        print(f"{title:<62} {times}   {target}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
