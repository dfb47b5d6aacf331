"""Conversion of the authors' checkpoints, with random and with stored weights; refusals."""

import argparse
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from polyview.export.official import BERT_ID, main
from polyview.export.runtime import Runtime
from polyview.models import Views
from polyview.models.views import lengths_to_mask
from tests.export import releases
from tests.export.hub_server import HubState
from tests.export.releases import State
from tests.golden.loading import check, load

Command = Callable[..., tuple[int, str]]
REPO, NAME = "cccjc/vse-infty", "f30k_wsl_grid_bert"  # the authors' on the Hub
TEXTS = ["a dog runs on the beach", "the cat"]
FRAMES = 5


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command on content saved as a checkpoint; returns its status and its output."""

    def run(content: Any, family: str, *options: str, legacy: bool = False) -> tuple[int, str]:
        path = tmp_path / "model_best.pth"
        path.write_bytes(content if isinstance(content, bytes) else saved(content, legacy=legacy))
        status = main(["--from", family, str(path), "--out", str(tmp_path / "pack"), *options])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


@pytest.fixture
def words(tmp_path: Path) -> str:
    return str(releases.write_words(tmp_path / "words.json"))


@pytest.fixture
def pieces(tmp_path: Path) -> str:
    return str(releases.write_pieces(tmp_path / "bert"))


def under(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def reference_cnn(state: State, pixels: Tensor, *, caffe: bool) -> Tensor:
    """Computes the features (B, N, d) of a ResNet step by step from stored weights."""

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, pad: int = 0) -> Tensor:
        weight = state[f"{conv}.weight"]
        x = functional.conv2d(x, weight, None, stride, pad, groups=x.shape[1] // weight.shape[1])
        mean, var = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
        return functional.batch_norm(x, mean, var, state[f"{norm}.weight"], state[f"{norm}.bias"])

    x = layer(pixels, "conv1", "bn1", 2, 3).relu()
    x = functional.max_pool2d(x, 3, 2, 0 if caffe else 1, ceil_mode=caffe)
    blocks = sorted({key.partition(".conv")[0] for key in state if key.startswith("layer")})
    for at in (block for block in blocks if f"{block}.conv1.weight" in state):
        stride = 2 if at.endswith(".0") and at != "layer1.0" else 1
        first, second = (stride, 1) if caffe else (1, stride)
        y = layer(x, f"{at}.conv1", f"{at}.bn1", first).relu()
        y = layer(y, f"{at}.conv2", f"{at}.bn2", second, 1).relu()
        y = layer(y, f"{at}.conv3", f"{at}.bn3")
        if f"{at}.downsample.0.weight" in state:
            x = layer(x, f"{at}.downsample.0", f"{at}.downsample.1", stride)
        x = (x + y).relu()
    return x.flatten(2).mT


@pytest.mark.parametrize("source", ["wsl", "detector"])
def test_cnn_stored_twice(source: str, command: Command, pieces: str, tmp_path: Path) -> None:
    content = releases.vse_infty_grid(source)
    status, output = command(content, "vse_infty", "--text-backbone", pieces)
    assert status == 0, output
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    state = under(content["model"][0], "module.backbone.resnet.")
    bytes_ = torch.randint(0, 256, (2, releases.SIZE, releases.SIZE, 3), dtype=torch.uint8)
    images, caffe = [Image.fromarray(image.numpy()) for image in bytes_], source == "detector"
    if caffe:  # BGR pixels of 0 to 255 minus the detector's means
        inputs = bytes_.flip(3).float() - torch.tensor([102.9801, 115.9465, 122.7717])
    else:
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        inputs = (bytes_ / 255 - mean) / std
    want = reference_cnn(state, inputs.permute(0, 3, 1, 2), caffe=caffe)
    torch.testing.assert_close(runtime.image_features(images), want, rtol=1e-4, atol=1e-4)
    assert runtime.text_views(TEXTS, "vse_infty").embeddings.shape == (2, 1, releases.EMBED + 2)
    assert runtime.reader.read("a dog").words == ["[CLS]", "a", "dog", "[SEP]"]
    assert runtime.info.methods["vse_infty"].config["options"]["backbone_source"] == source


def test_words_end_with_their_marks(command: Command, words: str, tmp_path: Path) -> None:
    assert command(releases.vse_infty_regions(), "vse_infty", "--vocab", words)[0] == 0
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    assert runtime.reader.size == len(releases.WORD_LIST) + 1
    assert runtime.reader.read("A dog isn't on the BEACH.").words == [
        *("<start>", "a", "dog", "<unk>", "<unk>", "on", "the", "beach", "<unk>", "<end>")
    ]
    long = runtime.reader.read("dog " * 100)
    assert (long.truncated, long.words[-1]) == (True, "<end>")
    assert len(long.ids) == runtime.info.tokenizer.max_length
    # MV-VSE's release stores options as strings
    assert command(releases.mv_vse(), "mv_vse", "--vocab", words, "--force")[0] == 0


def embedded(state: State, frames: Tensor, legacy: bool) -> Tensor:
    """Computes PVSE's EncoderVideo for the frames (T, d) of a clip: (K, H)."""
    rnn = nn.GRU(frames.shape[1], releases.EMBED // 2, bidirectional=True)
    rnn.load_state_dict(under(state, "img_enc.rnn."))
    outputs, last = rnn(frames)
    whole = outputs[-1] if legacy else last.flatten()
    net = under(state, "img_enc.pie_net.")
    hidden = torch.tanh(frames @ net["attention.w_1.weight"].T)
    attention = (hidden @ net["attention.w_2.weight"].T).softmax(dim=0)  # (T, K)
    residual = torch.sigmoid(attention.T @ frames @ net["fc.weight"].T + net["fc.bias"])
    scale = net["layer_norm.weight"], net["layer_norm.bias"]
    z = functional.layer_norm(whole + residual, (releases.EMBED,), *scale)
    return z / z.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("legacy", [True, False])
def test_clips_are_as_released(legacy: bool, command: Command, words: str, tmp_path: Path) -> None:
    state = releases.pvse_clips()
    option = "--legacy-text" if legacy else "--no-legacy-text"
    assert command(state, "pvse", "--vocab", words, option)[0] == 0
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    noise = torch.randint(0, 256, (FRAMES, 256, 256, 3), dtype=torch.uint8)
    frames = [Image.fromarray(frame.numpy()) for frame in noise]
    features = runtime.image_features(frames)  # (T, 1, d)
    pixels = torch.from_numpy(runtime.preprocess(frames))
    maps = reference_cnn(under(state, "img_enc.cnn."), pixels, caffe=False)
    torch.testing.assert_close(features[:, 0], maps.mean(dim=1), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        for count in (FRAMES, 1):  # an image is a clip of one frame
            clip = runtime.image_views(features[:count].transpose(0, 1), "pvse").embeddings[0]
            expected = embedded(state, features[:count, 0], legacy)
            torch.testing.assert_close(clip, expected, rtol=1e-4, atol=1e-5)


class Evil:
    """An object whose pickle makes a folder when it is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("pwned",)


LAST = "module.backbone.top.0.0.conv3.weight"
POSITIONS = "img_enc.visual_encoder.embeddings.position_embeddings"
EXTRA = "img_enc.visual_encoder.encoder.layer.0.extra"
# release, key of its model or "opt", name in it, new value (None removes the name), error message
REFUSALS: list[tuple[str, int | str, str, Any, str]] = [
    ("mv_vse", 1, "rnn.extra", torch.ones(2), r"holds model\[1\].rnn.extra, which this"),
    ("mv_vse", 1, "rnn.bias_hh_l0", None, "lacks text.forward_gru.bias_hh_l0"),
    ("mv_vse", 0, "fc_list.1.bias", torch.ones(3), "image.1.linear.bias has shape"),
    ("mv_vse", 0, "fc_list.0.bias", torch.full((8,), torch.nan), "NaN"),
    ("avse", "model", POSITIONS, torch.ones(1, 4, 8), "position_embeddings has shape .*; check"),
    ("avse", "model", POSITIONS, torch.ones(4), "position_embeddings has shape .*; check"),
    ("avse", "model", EXTRA, torch.ones(1), "unknown tensor image.model.layers.0.extra"),
    ("vse_infty_grid", 0, LAST, torch.ones(16, 8, 1, 1), "another copy of image.layer4"),
    ("vse_infty_grid", "opt", "backbone_source", "mystery", 'backbone_source is "mystery"'),
    ("vse_infty_grid", "opt", "input_scale_factor", "2", "factor must be a valid number"),
    ("vse_infty_regions", "opt", "no_imgnorm", True, "no_imgnorm=True"),
]


def test_misfits_are_refused_but_another_image_size_fits(
    command: Command, words: str, pieces: str, tmp_path: Path
) -> None:
    arguments = ["--vocab", words, "--text-backbone", pieces]
    avse = ["--image-backbone", pieces, "--block-dim", "4"]
    for make, part, key, value, sentence in REFUSALS:
        content, family = getattr(releases, make)(), re.sub("_(grid|regions)$", "", make)
        values = content["model"][part] if isinstance(part, int) else content[part]
        values = vars(values) if part == "opt" else values
        values[key] = value
        if value is None:
            del values[key]
        more = avse if family == "avse" else []
        assert_refused(command(content, family, *arguments, *more), sentence)
        assert not (tmp_path / "pack").exists()
    resized = releases.avse()
    resized["opt"].img_res = 128  # the positions are resized
    assert command(resized, "avse", *arguments, *avse)[0] == 0
    assert Runtime.load(tmp_path / "pack", "cpu").info.preprocess.size == 128


def assert_refused(result: tuple[int, str], pattern: str) -> None:
    status, printed = result
    assert status == 1
    assert re.fullmatch(f"export failed: .*{pattern}.*\n", printed), printed


def test_evil_pickles(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, refusal = {**releases.mv_vse(), "extra": Evil()}, r"the Python object \w+\.mkdir to"
    for legacy in (False, True):
        assert_refused(command(content, "mv_vse", legacy=legacy), refusal)
    assert not (tmp_path / "pwned").exists()


def saved(content: Any, *, legacy: bool = False) -> bytes:
    """A checkpoint as `torch.save` writes it today, or wrote it before 2020."""
    stored = io.BytesIO()
    torch.save(content, stored, _use_new_zipfile_serialization=not legacy)
    return stored.getvalue()


def test_broken_files(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--from", "pvse", "x.pth", "--out", str(tmp_path / "pack")]) == 1
    assert "there is no checkpoint x.pth" in capsys.readouterr().err
    whole, old = (saved(releases.mv_vse(), legacy=legacy) for legacy in (False, True))
    for content in (b"", b"no", whole[:200], whole[:-60], old[:100], old[:-20]):
        assert_refused(command(content, "mv_vse"), "is not a complete PyTorch checkpoint")
    others: list[Any] = [{"model": {"a": 1}}, [1, 2], {"model": [{}, {}, {}]}]
    for other in others:
        assert_refused(command(other, "mv_vse"), "holds no dictionary of tensors")
    for release, options, refusal in (
        ("vse_infty", ["--block-dim=128"], "is for --from avse; leave it out with vse_infty"),
        ("avse", ["--no-legacy-text"], "is for --from pvse; leave it out with avse"),
        ("pvse", ["--hub", "a/b/c"], "name either"),
    ):
        assert_refused(command(b"never read", release, *options), refusal)


def test_word_lists_that_do_not_fit(command: Command, words: str) -> None:
    listed = json.loads(Path(words).read_text())["word2idx"]
    assert_refused(command(releases.mv_vse(), "mv_vse"), "--vocab")
    fewer, shifted = [*listed.items()][:-1], {word: i + 1 for word, i in listed.items()}
    for written, sentence in (
        (json.dumps({"word2idx": dict(fewer)}).encode(), "the 11 words of .*, not 10 words"),
        (json.dumps({"word2idx": shifted}).encode(), "numbered from 0"),
        (b"\x80\x04]", "is a pickle.*json.dump"),
    ):
        Path(words).write_bytes(written)
        assert_refused(command(releases.mv_vse(), "mv_vse", "--vocab", words), sentence)


def test_word_pieces_that_do_not_fit(command: Command, pieces: str) -> None:
    folder, content = Path(pieces), releases.vse_infty_grid()
    arguments = ["--text-backbone", pieces]
    releases.write_pieces(folder, hidden_size=16)
    refusal = r"has shape .* needs \(30, 16\); check .* config.json"
    assert_refused(command(content, "vse_infty", *arguments), refusal)
    releases.write_pieces(folder, 31)
    refusal = "lists 31 word pieces, but .* embeddings of 30"
    assert_refused(command(content, "vse_infty", *arguments), refusal)
    refusal = f"--text-backbone: there is no folder .*did you mean {folder}.*{BERT_ID}"
    assert_refused(command(content, "vse_infty", "--text-backbone", f"{folder}x"), refusal)


@pytest.mark.network
def test_hub_release(server: HubState, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, folder = saved(releases.vse_infty_grid()), releases.write_pieces(tmp_path / "bert")
    files = {f"{NAME}/model_best.pth": stored, f"{NAME}/checkpoint.pth": b"last epoch"}
    files |= dict.fromkeys(("README.md", "other/one.pth", "other/two.pth"), b"")
    pieces = {name: (folder / name).read_bytes() for name in ("vocab.txt", "config.json")}
    pieces["model.safetensors"] = b"large"
    commit = server.add(REPO, files)
    server.add("google-bert/bert-base-uncased", pieces)
    out = tmp_path / "pack"
    for address, sentence in (
        ("somewhere", "takes owner/name/FOLDER_OR_FILE"),
        (f"{REPO}/absent", "no checkpoints under absent; name one of .*model_best.pth"),
        (f"{REPO}/other", "2 checkpoints under other; name one of other/one.pth, other/two"),
        (f"{REPO}/{NAME}@nowhere", "no such revision"),
        (f"{REPO}/other/one.pth", "is not a complete PyTorch checkpoint"),
    ):
        assert main(["--from", "vse_infty", "--hub", address, "--out", str(out)]) == 1
        errors = capsys.readouterr().err.splitlines()[-1]  # after the progress bar
        assert re.match(f"export failed: .*{sentence}", errors), errors
        assert not out.exists()
    server.requests.clear()
    assert main(["--from", "vse_infty", "--hub", f"{REPO}/{NAME}", "--out", str(out)]) == 0
    requested = [request for request in server.requests if request.startswith("GET /")]
    assert any(request.endswith("model_best.pth") for request in requested)
    assert not any(re.search(r"checkpoint\.pth|one\.pth|model\.safetensors", r) for r in requested)
    runtime = Runtime.load(out, "cpu")
    origin = runtime.info.methods["vse_infty"].config["origin"]
    assert origin == f"{REPO}/{NAME}/model_best.pth@{commit}"
    assert runtime.info.name == "vse_infty_f30k_wsl_grid_bert"


FOLDER = Path(__file__).parents[4] / "shared" / "golden" / "checkpoints"
# of the stored transformers, whose vocabulary has 60 word pieces
SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
Data = dict[str, Tensor]


def convert(folder: Path, family: str, name: str, *options: str) -> Runtime:
    arguments = ["--from", family, str(FOLDER / f"{name}.pth"), "--out", str(folder / "pack")]
    assert main([*arguments, *options, "--force"]) == 0
    return Runtime.load(folder / "pack", "cpu")


def word_list(folder: Path, name: str, key: str, part: int | None = 1, without: int = 0) -> str:
    """Writes the words of a stored checkpoint's embeddings, except the last `without` words."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(FOLDER / f"{name}.pth", weights_only=True)
    model = content.get("model", content)
    count = len((model if part is None else model[part])[key]) - without
    listed = ["<pad>", "<start>", "<end>", "<unk>", *(f"word{i}" for i in range(count - 4))]
    return str(releases.write_words(folder / "words.json", listed))


def backbone_folder(folder: Path, data: Data, kind: str = "bert") -> str:
    """Writes the folder of a backbone with the sizes of the stored checkpoints."""
    settings = {**SIZES, "model_type": kind, "max_position_embeddings": 40}
    settings["num_attention_heads"] = int(data[f"{kind}_num_attention_heads"])
    settings["layer_norm_eps"] = float(data[f"{kind}_layer_norm_eps"])
    return str(releases.write_pieces(folder, 60, **settings))


def texts(runtime: Runtime, method: str, data: Data, lengths: str = "caption_lengths") -> Views:
    features, mask = runtime.token_features(data["tokens"].numpy(), data[lengths].numpy(), method)
    return runtime.methods[method].encode_text(features, mask)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["vse_infty_bigru", "vse_infty_bert"])
def test_vse_infty(name: str, tmp_path: Path) -> None:
    data = load(name, FOLDER)
    if name == "vse_infty_bigru":
        # the list lacks the <mask> that the release appends
        options = ["--vocab", word_list(tmp_path, name, "embed.weight", without=1)]
    else:
        options = ["--text-backbone", backbone_folder(tmp_path / "bert", data)]
    runtime = convert(tmp_path, "vse_infty", name, *options)
    mask = lengths_to_mask(data["image_lengths"], data["images"].shape[1])
    images = runtime.image_views(data["images"], "vse_infty", mask=mask)
    check(images.embeddings[:, 0], data["image_embedding"])
    check(texts(runtime, "vse_infty", data).embeddings[:, 0], data["caption_embedding"])


@pytest.mark.shared
def test_mv_vse(tmp_path: Path) -> None:
    data = load("mvvse", FOLDER)
    vocabulary = word_list(tmp_path, "mvvse", "embed.weight")
    runtime = convert(tmp_path, "mv_vse", "mvvse", "--vocab", vocabulary)
    images = runtime.image_views(data["images"], "mv_vse").embeddings
    check(images.transpose(0, 1), data["view_embeddings"])
    check(texts(runtime, "mv_vse", data).embeddings[:, 0], data["caption_embedding"])


@pytest.mark.shared
@pytest.mark.parametrize("name", ["pvse", "pvse_eval_bare", "pvse_legacy_container"])
def test_pvse(name: str, tmp_path: Path) -> None:
    data = load("pvse", FOLDER)
    vocabulary = word_list(tmp_path, name, "txt_enc.embed.weight", None)
    runtime = convert(tmp_path, "pvse", name, "--vocab", vocabulary)
    features = runtime.pixel_features(data["images_half"].float().numpy())
    check(features.mT, data["cnn_feature_map"].flatten(2))
    images: Any = runtime.image_views(features, "pvse", attention=True)
    check(images.embeddings, data["image_embedding"])
    check(images.attention.mT, data["image_attention"])
    check(texts(runtime, "pvse", data, "lengths").embeddings, data["caption_embedding"])


def unit_blocks(embeddings: Tensor, views: int, block: int) -> Tensor:
    """Converts stored embeddings to views (B, V, D) with blocks of unit length."""
    blocks = embeddings.unflatten(1, (views, -1, block))
    return (blocks / blocks.norm(dim=-1, keepdim=True)).flatten(2)


@pytest.mark.shared
def test_avse(tmp_path: Path) -> None:
    data = load("avse", FOLDER)
    block, counts = int(data["block_dim"]), data["view_centres"]
    options = ["--text-backbone", backbone_folder(tmp_path / "bert", data)]
    options += ["--image-backbone", backbone_folder(tmp_path / "vit", data, "vit")]
    options += ["--block-dim", str(block), "--centres"]
    # the release drew centres for each image; a pack has fixed ones
    for centres in counts.unique(dim=0):
        runtime = convert(tmp_path, "avse", "avse", *options, *map(str, centres.tolist()))
        same = (counts == centres).all(dim=1)
        features = runtime.pixel_features(data["images"][same].numpy())
        images: Any = runtime.image_views(features, "avse", attention=True)
        check(images.embeddings, unit_blocks(data["image_embedding"], 2, block)[same])
        captions = texts(runtime, "avse", data)
        check(captions.embeddings, unit_blocks(data["caption_embedding"], 1, block))
        check(runtime.methods["avse"].score(images, captions), data["scores"][same])
        # patches that a view leaves out have no attention
        seen = images.attention[..., 1:] != 0  # (B, V, patches)
        for image_seen, remaining in zip(seen, data["selected_patches"][same], strict=True):
            for view, patches in zip(image_seen, remaining, strict=True):
                assert set(view.nonzero()[:, 0].tolist()) == set(patches.tolist())
