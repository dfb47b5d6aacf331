"""Heavy operations beside straightforward formulations: `python -m benchmarks.kernels`.

Ours and the baseline (`benchmarks/baselines.py`) take turns in one run, and the best time of each
counts. On one thread the processor's time is measured, so that other programs do not count; on
more, wall time.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import models
from benchmarks.baselines import PackedBiGRU, PlainAVSE, PlainGPO, plain_method, plain_pvse_loss
from models import Method, Views
from models.avse import AVSE, AVSEConfig
from models.encoders.bigru import BiGRUTextEncoder
from models.gpo import GPO
from models.layers import l2_normalize
from models.pvse import PVSE
from training.objectives import build_objective
from training.objectives.pvse import Polysemous

Run = Callable[[], object]
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")  # the matrix products among PyTorch's operators


@dataclass(frozen=True)
class Sizes:
    """How large everything is; the defaults are the papers'.

    Attributes:
        batch: image-text pairs of a training step.
        regions: elements of an image's set.
        words: of a text.
        image_dim: width of a region's feature.
        embed_dim: of the joint space.
        vocabulary: rows of the word table.
        images: of the whole score matrix.
        texts: of the whole score matrix.
        gallery: images that one text is compared with.
    """

    batch: int = 128
    regions: int = 36
    words: int = 12
    image_dim: int = 2048
    embed_dim: int = 1024
    vocabulary: int = 8000
    images: int = 1000
    texts: int = 5000
    gallery: int = 10_000


@dataclass(frozen=True)
class Row:
    """One comparison, ready to be timed; `target` is what ours over the baseline should reach."""

    title: str
    baseline: Run
    ours: Run
    target: str


def gpo_rows(sizes: Sizes) -> list[Row]:
    """GPO forward and backward."""
    gpo = GPO.released()
    mask = torch.ones(sizes.batch, sizes.regions, dtype=torch.bool)
    features = torch.randn(*mask.shape, sizes.embed_dim, requires_grad=True)
    upstream = torch.randn(sizes.batch, sizes.embed_dim)

    def run(module: nn.Module) -> Run:
        def both() -> None:
            features.grad = None
            module(features, mask)[0].backward(upstream)

        return both

    title = f"GPO, {sizes.batch} x {sizes.regions} x {sizes.embed_dim}, forward and backward"
    return [Row(title, run(PlainGPO(gpo)), run(gpo), ">= 4 x")]


def gru_rows(sizes: Sizes) -> list[Row]:
    """The text encoder, narrow and wide, forward and backward."""
    lengths = torch.randint(1, sizes.words + 1, (sizes.batch,))
    ids = torch.randint(1, sizes.vocabulary, (sizes.batch, int(lengths.max())))

    def run(module: nn.Module) -> Run:
        def both() -> None:
            module.zero_grad()
            module(ids, lengths).sum().backward()

        return both

    rows = []
    for width in (sizes.embed_dim // 8, sizes.embed_dim):
        encoder = BiGRUTextEncoder(sizes.vocabulary, width, width)
        title = f"BiGRU of {width}, {sizes.batch} texts, forward and backward"
        rows.append(Row(title, run(PackedBiGRU(encoder)), run(encoder), "faster"))
    return rows


def sinkhorn_rows(sizes: Sizes) -> list[Row]:
    """AVSE's whole score matrix, and one text against a gallery."""
    rows = []
    for parts in (2, 4):
        block_dim = sizes.embed_dim // parts
        ours = _avse(AVSE, sizes, block_dim)
        plain = _avse(PlainAVSE, sizes, block_dim)
        images = _block_views(ours, sizes.images, 2, sizes)
        texts = _block_views(ours, sizes.texts, 1, sizes)
        gallery = _block_views(ours, sizes.gallery, 2, sizes)
        end = f"d2 = {block_dim}"
        rows.append(
            Row(
                f"Sinkhorn, {sizes.images} x {sizes.texts}, {end}",
                _score(plain, images, texts),
                _score(ours, images, texts),
                ">= 25 x",
            )
        )
        slow, fast = (_score(method, gallery, texts[:1]) for method in (plain, ours))
        rows.append(Row(f"Sinkhorn, 1 x {sizes.gallery}, {end}", slow, fast, "faster"))
        cosine = _cosine(gallery.embeddings.flatten(1))
        rows.append(Row(f"the same beside plain cosine, {end}", cosine, fast, ">= 1/4 x"))
    return rows


def pvse_rows(sizes: Sizes) -> list[Row]:
    """PVSE's loss, forward and backward."""
    method, objective = PVSE(4, 4, sizes.embed_dim), Polysemous(released=True)
    shape = (2, sizes.batch, 2, sizes.embed_dim)
    given, residuals = torch.randn(shape, requires_grad=True), torch.rand(shape, requires_grad=True)
    ids = torch.arange(sizes.batch)

    def views() -> tuple[Views, Views]:
        given.grad = residuals.grad = None
        unit = l2_normalize(given)
        first, second = (Views(unit[i], extras={"residuals": residuals[i]}) for i in (0, 1))
        return first, second

    def plain() -> None:
        images, texts = views()
        own = torch.eye(sizes.batch, dtype=torch.bool)
        plain_pvse_loss(method, images, texts, own, objective.diversity).backward()

    def ours() -> None:
        images, texts = views()
        terms = objective(method, images, texts, ids, 0)
        torch.stack(list(terms.values())).sum().backward()

    title = f"PVSE's loss, batch {sizes.batch}, K = 2, {sizes.embed_dim}-d, forward and backward"
    return [Row(title, plain, ours, ">= 10 x")]


def step_rows(sizes: Sizes) -> list[Row]:
    """A whole training step of each method, in float32 and, where the CPU computes in it, bfloat16.

    Beside them a step's matrix products in float32 and nothing else: no step that multiplies these
    matrices is faster, however well it is written, so their ratio is what float32 can reach.
    """
    residual = {"mlp_dim": sizes.embed_dim // 2, "released_gpo": True}
    arguments: dict[str, dict[str, Any]] = {
        "vse_infty": residual,
        "mv_vse": residual,
        "pvse": {},
        "avse": {"released_gpo": True},
    }
    rows = []
    for name, own in arguments.items():
        own = {"embed_dim": sizes.embed_dim, **own}
        plain = training_step(name, own, sizes, plain=True)
        for precision in (torch.float32, torch.bfloat16)[: 1 + computes_in_bfloat16()]:
            ours = training_step(name, own, sizes, precision)
            title = f"training step of {name}, {str(precision).removeprefix('torch.')}"
            rows.append(Row(title, plain, ours, ">= 2 x"))
        alone = products(training_step(name, own, sizes))
        rows.append(Row("its matrix products alone, float32", plain, alone, "the ceiling"))
    return rows


def computes_in_bfloat16() -> bool:
    """Whether matrix products in bfloat16 have instructions here; emulated, they only cost time."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def products(run: Run) -> Run:
    """The matrix products of `run` alone: of the same shapes and strides, as often, on noise."""
    with _Recorder() as recorder:
        run()
    noise = {key: tuple(_noise(*part) for part in key) for key in recorder.seen}

    def alone() -> None:
        for key, times in recorder.seen.items():
            left, right = noise[key]
            for _ in range(times):
                left @ right

    return alone


class _Recorder(TorchDispatchMode):
    """Counts the matrix products of what runs under it, by the shapes and strides of factors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            factors = [part for part in args if isinstance(part, Tensor)][-2:]
            self.seen[tuple((tuple(part.shape), part.stride()) for part in factors)] += 1
        return func(*args, **(kwargs or {}))


def _noise(shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return torch.randn(last + 1).as_strided(shape, stride)


SECTIONS: dict[str, Callable[[Sizes], list[Row]]] = {
    "gpo": gpo_rows,
    "gru": gru_rows,
    "sinkhorn": sinkhorn_rows,
    "pvse": pvse_rows,
    "steps": step_rows,
}


def training_step(
    name: str,
    arguments: dict[str, Any],
    sizes: Sizes,
    precision: torch.dtype = torch.float32,
    *,
    plain: bool = False,
) -> Run:
    """A training step of a method on noise, on the default device that torch has now.

    Args:
        name: of the method and its objective.
        arguments: the method's own.
        sizes: how large everything is.
        precision: of the forward pass, by autocast.
        plain: as the authors' releases formulate it.
    """
    torch.manual_seed(0)
    words = 0 if name == "pvse" else 2
    encoder = BiGRUTextEncoder(sizes.vocabulary, 300, sizes.embed_dim, directions=words)
    method = models.build(name, sizes.image_dim, encoder.dim, arguments).train()
    texts: nn.Module = PackedBiGRU(encoder) if plain and words else encoder
    objective = build_objective(name, {"released": True} if name == "pvse" else {})
    method = plain_method(method) if plain else method
    pair = nn.ModuleList([method, texts])
    optimizer = torch.optim.AdamW(pair.parameters(), lr=1e-4, fused=not plain)
    features = torch.randn(sizes.batch, sizes.regions, sizes.image_dim)
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    ids = torch.randint(1, sizes.vocabulary, (sizes.batch, sizes.words))
    lengths, spoken = torch.full((sizes.batch,), sizes.words), torch.ones_like(ids).bool()
    image_ids, own = torch.arange(sizes.batch), torch.eye(sizes.batch, dtype=torch.bool)

    def loss_of(images: Views, texts: Views) -> Tensor:
        images, texts = (v.apply(lambda part: part.float()) for v in (images, texts))
        if plain and isinstance(objective, Polysemous):
            return plain_pvse_loss(method, images, texts, own, objective.diversity)
        terms = objective(method, images, texts, image_ids, 1)
        return torch.stack(list(terms.values())).sum()

    def step() -> None:
        with torch.autocast(features.device.type, precision, enabled=precision != torch.float32):
            images = method.encode_image(features, mask)
            views = method.encode_text(texts(ids, lengths), spoken)
        loss = loss_of(images, views)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(pair.parameters(), 2.0)
        optimizer.step()

    return step


def _avse(kind: type[AVSE], sizes: Sizes, block_dim: int) -> AVSE:
    return kind(4, sizes.embed_dim, AVSEConfig(sizes.embed_dim, block_dim)).eval()


def _block_views(method: AVSE, count: int, views: int, sizes: Sizes) -> Views:
    return Views(method._unit_blocks(torch.randn(count, views, sizes.embed_dim)))


def _score(method: Method, images: Views, texts: Views) -> Run:
    def run() -> None:
        with torch.inference_mode():
            method.score(images, texts)

    return run


def _cosine(gallery: Tensor) -> Run:
    """One query against the rows (n, D) of a gallery."""
    query = torch.randn(1, gallery.shape[1])

    def run() -> None:
        with torch.inference_mode():
            torch.mm(query, gallery.T)

    return run


def measure(row: Row, repeats: int, clock: Callable[[], float]) -> tuple[float, float]:
    """The best times of the baseline and of ours, in seconds."""
    best = [float("inf"), float("inf")]
    for turn in range(repeats + 1):
        for place, run in enumerate((row.baseline, row.ours)):
            began = clock()
            run()
            spent = clock() - began
            if turn or repeats == 0:  # the first turn warms up
                best[place] = min(best[place], spent)
    return best[0], best[1]


def main(argv: Sequence[str], sizes: Sizes | None = None) -> int:
    """Measures and prints a table; see the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="turns after the first; 0 for one")
    given = parser.parse_args(argv)
    if given.threads < 1 or given.repeats < 0:
        parser.error("--threads must be at least 1, and --repeats at least 0")
    torch.set_num_threads(given.threads)
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    print(f"torch {torch.__version__}, {given.threads} thread(s), best of {given.repeats or 1}")
    print(f"{'':<62} {'baseline ms':>12} {'ours ms':>10} {'ratio':>7}   target")
    for section in given.only:
        torch.manual_seed(0)
        for row in SECTIONS[section](sizes or Sizes()):
            baseline, ours = measure(row, given.repeats, clock)
            times = f"{baseline * 1e3:>12.1f} {ours * 1e3:>10.1f} {baseline / ours:>6.1f}x"
            print(f"{row.title:<62} {times}   {row.target}", flush=True)
    if "steps" in given.only and not computes_in_bfloat16():
        print("no steps in bfloat16: this CPU has no instructions for it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
