"""Builds a pack that computes the same numbers and rankings as its torch modules.

A pack is written to a draft folder, compared with torch at several batch sizes and lengths, and
moved to the target folder only if it passes two checks. The largest difference of features,
embeddings and scores, relative to the larger of 1 and the largest magnitude, must not exceed
`TOLERANCE`. Every row and column of the scores must have torch's order, but scores that differ by
at most `TIE_TOLERANCE` (float32 noise) may swap.

Encoders become ONNX with a dynamic batch size and length. Weights are stored in half precision and
converted to float32 by a Cast, which onnxruntime evaluates when it loads the file.
"""

import copy
import io
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import Tensor, nn

from polyview.export.pack import schema
from polyview.export.pack.gallery import load_gallery
from polyview.export.pack.reading import describe_file, load_info, summarize_gallery, write_info
from polyview.export.pack.schema import FOLDER, INDEX, REGIONS, Labels, MethodInfo, PackInfo
from polyview.export.runtime import Runtime
from polyview.models import METHODS, Method
from polyview.models.checkpoint import round_to_half, save_tensors
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.files import replacing_folder
from polyview.models.preprocess import Preprocess
from polyview.models.views import lengths_to_mask

IMAGE_ENCODER, TOKENIZER = "image_encoder.onnx", "tokenizer.json"
LOGS = ("config.toml", "log.csv")
MAX_LENGTH = 64  # maximum number of tokens of a text, if its encoder has no limit
TOLERANCE = 1e-4
TIE_TOLERANCE = 1e-5
MAX_PROBE_IMAGES = 48  # maximum number of images of the last probe
_MIN_CAST_SIZE = 16  # minimum number of values for which half precision and a Cast save space


@dataclass(frozen=True)
class MethodParts:
    """One method of a pack, as torch modules in eval mode.

    Without an image encoder, the method reads precomputed features. An image encoder other than
    that of `PackParts` was fine-tuned with the method, and is exported separately.
    """

    image_encoder: ImageEncoder | None
    text_encoder: TextEncoder
    head: Method
    arguments: dict[str, Any]  # arguments of the head, for `models.build`
    config: dict[str, Any]  # training configuration
    shared_text: str | None = None  # SHA-256 of a text encoder that several methods share
    key: str = ""  # key of `models.METHODS`; empty if it equals the name in the pack


@dataclass(frozen=True)
class PackParts:
    """The modules, settings and files from which a pack is built."""

    image_encoder: ImageEncoder | None  # shared by methods; None for precomputed features
    image_dim: int  # d of the image features
    preprocess: Preprocess
    tokenizer: str  # in the format of Hugging Face `tokenizers`, as JSON
    max_length: int  # maximum number of tokens of a text; longer texts are truncated
    methods: Mapping[str, MethodParts]  # by their names in the pack, at least one
    gallery: Path | None = None  # a folder with `gallery.json` to copy into the pack
    frames: int = 1  # see `ImageEncoderInfo`
    logs: Mapping[str, Path] = field(default_factory=dict)  # folder in `training/` -> run folder
    half: bool = True  # whether to round the weights to half precision


def build_pack(out: Path, labels: Labels, parts: PackParts) -> PackInfo:
    """Builds a pack; an existing folder at `out` is replaced only if the new pack is correct.

    Raises ValueError if a weight exceeds the range of half precision, the gallery lacks features
    that the pack reads, or the pack differs from torch; DiskFullError if the disk is full.
    """
    rounded_parts = copy.deepcopy(parts) if parts.half else parts  # shared modules stay shared
    for name, method in rounded_parts.methods.items() if parts.half else ():
        for module in (method.image_encoder, method.text_encoder, method.head):
            if module is not None:
                module.load_state_dict(round_to_half(module.state_dict(), name))
    with replacing_folder(out) as draft:
        info = _write_parts(draft, labels, rounded_parts)
        runtime, methods = Runtime.load(draft, "cpu"), dict[str, MethodInfo]()
        for name, method in parts.methods.items():
            parity = check_parity(runtime, name, rounded_parts.methods[name], method)
            methods[name] = replace(info.methods[name], parity=parity)
        write_info(replace(info, methods=methods))
        return replace(load_info(draft), folder=out)


def _write_parts(work: Path, labels: Labels, parts: PackParts) -> PackInfo:
    """Writes a pack into the folder `work`; returns the content of its pack.json."""
    (work / TOKENIZER).write_text(parts.tokenizer, "utf-8")
    for name, folder in parts.logs.items():
        _copy(folder, work / "training" / name, [log for log in LOGS if (folder / log).is_file()])
    methods = {k: _write_method(work, k, method, parts) for k, method in parts.methods.items()}
    encoder, size = parts.image_encoder, parts.preprocess.size
    file, grid, summary = None, (1, 1), False
    if encoder is not None:
        grid, summary = encoder.grid(size), encoder.summary_token
        # if no method uses the encoder of `parts`, the pack's encoder is that of the first method
        file = f"{next(iter(methods))}/{IMAGE_ENCODER}"
        if any(method.image_encoder is encoder for method in parts.methods.values()):
            file = IMAGE_ENCODER
            export_image_encoder(encoder, size, work / file)
    gallery = None if parts.gallery is None else load_gallery(parts.gallery)
    if gallery is not None:
        gallery_files = [INDEX, REGIONS] if (gallery.folder / REGIONS).is_file() else [INDEX]
        if encoder is None and REGIONS not in gallery_files:
            fault = f"{parts.gallery} holds only images, but the pack reads precomputed features"
            raise ValueError(f"{fault}; make its gallery with python -m polyview region-gallery")
        _copy(gallery.folder, work / FOLDER, gallery_files)
    paths = [path for path in sorted(work.rglob("*")) if path.is_file()]
    if gallery is not None:  # `paths` lacks the images, because one checksum covers all of them
        _copy(gallery.folder, work / FOLDER, gallery.files)
    info = PackInfo(
        folder=work,
        **asdict(labels),
        preprocess=parts.preprocess,
        image_encoder=schema.ImageEncoderInfo(file, parts.image_dim, grid, summary, parts.frames),
        tokenizer=schema.TokenizerInfo(TOKENIZER, parts.max_length),
        methods=methods,
        files={path.relative_to(work).as_posix(): describe_file(path) for path in paths},
        gallery=None if gallery is None else summarize_gallery(gallery),
    )
    write_info(info)
    return info


def _write_method(work: Path, name: str, method: MethodParts, parts: PackParts) -> MethodInfo:
    """Writes the encoders and the head of a method; returns the method's entry in pack.json."""
    text_file, head_file = f"{name}/text_encoder.onnx", f"{name}/head.safetensors"
    if method.shared_text is not None:
        text_file = f"text_encoder-{method.shared_text[:12]}.onnx"
    if not (work / text_file).is_file():
        export_text_encoder(method.text_encoder, work / text_file)
    image_encoder, image_file = method.image_encoder, None
    if image_encoder is not None and image_encoder is not parts.image_encoder:
        image_file = f"{name}/{IMAGE_ENCODER}"
        export_image_encoder(image_encoder, parts.preprocess.size, work / image_file)
    weights = method.head.state_dict()
    if parts.half:
        weights = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    key = method.key or name
    metadata = {"kind": "head", "method": key, "arguments": method.arguments}
    save_tensors(work / head_file, weights, metadata)
    variant = name.removeprefix(f"{key}_").replace("_", " ")  # "mvam_4_codes": "MVAM, 4 codes"
    return MethodInfo(
        arguments=method.arguments,
        image_dim=parts.image_dim,
        text_dim=method.text_encoder.dim,
        text_encoder=text_file,
        head=head_file,
        config=method.config,
        parity=None,
        image_encoder=image_file,
        method=None if key == name else key,
        title=None if key == name else f"{METHODS[key].title}, {variant}",
    )


def export_image_encoder(encoder: nn.Module, size: int, path: Path) -> None:
    """Writes an image encoder as ONNX: `pixels` (B, 3, size, size) -> `features` (B, N, d)."""
    axes = {"pixels": ["B"], "features": ["B"]}
    _export(encoder, {"pixels": torch.zeros(2, 3, size, size)}, axes, path)


def export_text_encoder(encoder: nn.Module, path: Path) -> None:
    """Writes a text encoder as ONNX: `ids` (B, L), `lengths` (B,) int64 -> `features` (B, L, d)."""
    inputs = {"ids": torch.ones(2, 5, dtype=torch.int64), "lengths": torch.tensor([5, 3])}
    axes = {"ids": ["B", "L"], "lengths": ["B"], "features": ["B", "L"]}
    _export(encoder, inputs, axes, path)


def _export(
    encoder: nn.Module, inputs: dict[str, Tensor], axes: dict[str, list[str]], path: Path
) -> None:
    """Writes an encoder as ONNX; `axes` names the dynamic axes of each input and output."""
    for module in encoder.modules():
        # Torch's fused attention masks with infinity, which packs must not contain.
        if callable(set_attention := getattr(module, "set_attn_implementation", None)):
            set_attention("eager")
    # The dynamo exporter gives only the first recurrent network of a process a dynamic length.
    # Constants are not folded, because half precision cannot represent convolutions merged with
    # batch norms exactly; onnxruntime folds constants when it loads the file.
    traced = io.BytesIO()
    with warnings.catch_warnings():
        # The trace may be wrong for other batch sizes and lengths; `check_parity` tries several.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            encoder.eval(),
            tuple(inputs.values()),
            traced,  # type: ignore[arg-type]  # tracing also accepts files in memory
            input_names=list(inputs),
            output_names=["features"],
            dynamic_axes={name: dict(enumerate(names)) for name, names in axes.items()},
            opset_version=17,
            do_constant_folding=False,
            dynamo=False,
        )
    model = onnx.load_from_string(traced.getvalue())
    _store_in_half(model.graph)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def _store_in_half(graph: onnx.GraphProto) -> None:
    """Stores weights as half precision and a Cast, where this is exact and saves space."""
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values, name = numpy_helper.to_array(tensor), tensor.name
        half = values.astype(np.float16)
        if values.size < _MIN_CAST_SIZE or not np.array_equal(half.astype(np.float32), values):
            continue
        tensor.CopyFrom(numpy_helper.from_array(half, f"{name}.half"))
        casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _copy(source: Path, target: Path, files: Iterable[str]) -> None:
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)


@torch.no_grad()
def check_parity(
    runtime: Runtime, name: str, rounded_parts: MethodParts, original_parts: MethodParts
) -> schema.Parity:
    """Compares a method of a pack on the CPU with torch; raises ValueError if they differ.

    `rounded_parts` have the weights of the pack, `original_parts` have those before rounding.
    """
    max_drift = 0.0
    for pixels, ids, lengths in _probes(runtime):
        images = torch.from_numpy(pixels)
        if runtime.info.image_encoder.file is not None:
            images = runtime.pixel_features(pixels, name)
        texts = runtime.token_features(ids, lengths, name)
        actual = _outputs(runtime.methods[name], images, *texts)
        expected = _run_torch(rounded_parts, pixels, ids, lengths)
        sizes = f"at {len(pixels)} images and {ids.shape} tokens"
        for quantity, reference in expected.items():
            values, scale = actual[quantity], max(1.0, float(reference.abs().max()))
            same_shape = values.shape == reference.shape
            drift = float((values - reference).abs().max()) / scale if same_shape else float("inf")
            if not drift <= TOLERANCE:
                fault = f"{name}: {quantity} of the pack differ from torch by {drift:.2g} {sizes}"
                raise ValueError(f"{fault}, more than {TOLERANCE:g}; the export was not kept")
            max_drift = max(max_drift, drift)
        if not same_ranking(actual["scores"], expected["scores"]):
            raise ValueError(f"{name}: rankings differ from torch {sizes}; the export was not kept")
    # the effect of rounding on the scores of the last probe
    rounded_scores = expected["scores"]
    scores = _run_torch(original_parts, pixels, ids, lengths)["scores"]
    # for each text, then each image: True if the best match is the same
    same_best = torch.cat([rounded_scores.argmax(dim) == scores.argmax(dim) for dim in (0, 1)])
    change, share = float((rounded_scores - scores).abs().max()), float(same_best.float().mean())
    return schema.Parity(max_drift, ranking=True, fp16_numbers=change, fp16_ranking=share)


def same_ranking(scores: Tensor, reference: Tensor) -> bool:
    """Returns whether scores (B_img, B_txt) rank like `reference`, up to `TIE_TOLERANCE`."""
    slack = TIE_TOLERANCE * max(1.0, float(reference.abs().max()))
    for candidate, expected in ((scores, reference), (scores.T, reference.T)):
        reordered = expected.gather(1, candidate.argsort(dim=1, descending=True))
        if bool((reordered - reordered.cummin(dim=1).values > slack).any()):  # out of order
            return False
    return True


def _probes(runtime: Runtime) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields test inputs: pixels or image features, token ids (B_txt, M), lengths (B_txt,)."""
    rng, encoder = np.random.default_rng(20240), runtime.info.image_encoder
    max_length, side = runtime.info.tokenizer.max_length, runtime.preprocess.size
    shapes = [(1, 1, 1), (3, 5, min(7, max_length)), (2, 3, max_length)]  # images, texts, tokens
    # the last probe has enough images for rankings: random ones, or the first of the gallery
    if runtime.info.gallery is None:
        count = MAX_PROBE_IMAGES if side <= 256 else 4  # large images take long
        shapes.append((count, count, min(12, max_length)))
    for image_count, text_count, length in shapes:
        pixels = rng.integers(0, 256, (image_count, side, side, 3), np.uint8)
        lengths = rng.integers(1, length + 1, text_count)
        lengths[0] = length
        ids = rng.integers(1, runtime.reader.size, (text_count, length))
        ids[np.arange(length) >= lengths[:, None]] = 0
        if encoder.file is None:  # (B_img, 7, d)
            yield rng.normal(size=(image_count, 7, encoder.dim)).astype("f"), ids, lengths
        else:
            yield runtime.preprocess.planes(pixels), ids, lengths  # (B_img, 3, side, side)
    if runtime.info.gallery is not None:
        gallery = load_gallery(runtime.info.folder)
        entries = gallery.images[:MAX_PROBE_IMAGES]
        captions = [caption.text for entry in entries for caption in entry.captions[:2]]
        if runtime.regions is not None:
            inputs = runtime.regions.features(range(len(entries))).numpy()
        else:
            inputs = runtime.preprocess(Image.open(gallery.folder / e.file) for e in entries)
        yield inputs, *runtime.reader.batch(captions)


def _run_torch(
    method: MethodParts, pixels: np.ndarray, ids: np.ndarray, lengths: np.ndarray
) -> dict[str, Tensor]:
    """Computes `_outputs` in torch; `pixels` are image features if there is no image encoder."""
    images, text_lengths = torch.from_numpy(pixels), torch.from_numpy(lengths)
    if method.image_encoder is not None:
        images = method.image_encoder(images)  # (B_img, N, d)
    texts = method.text_encoder(torch.from_numpy(ids), text_lengths)  # (B_txt, M, d)
    return _outputs(method.head, images, texts, lengths_to_mask(text_lengths, ids.shape[1]))


def _outputs(
    method: Method, image_features: Tensor, text_features: Tensor, text_mask: Tensor
) -> dict[str, Tensor]:
    """Returns the quantities that `check_parity` compares, by name."""
    image_mask = torch.ones(image_features.shape[:2], dtype=torch.bool)
    images = method.encode_image(image_features, image_mask)
    texts = method.encode_text(text_features, text_mask)
    return {
        "image features": image_features,
        "text features": text_features,
        "image embeddings": images.embeddings,
        "text embeddings": texts.embeddings,
        "scores": method.score(images, texts),
    }
