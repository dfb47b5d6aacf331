"""The pack that comes with the app, from its start to the answers."""

import numpy as np
import pytest

from polyview.app.settings import BUNDLED
from polyview.export.pack.gallery import GalleryInfo, load_gallery
from tests.app.serving import Server

PACK = BUNDLED / "scenes"


@pytest.fixture(scope="module")
def gallery() -> GalleryInfo:
    return load_gallery(PACK)


def has(gallery: GalleryInfo, image_id: int, name: str) -> bool:
    """Whether there is such a thing in a scene, by the ground truth."""
    return any(entry.name == name for entry in gallery.images[image_id].objects)


@pytest.mark.parametrize(("words", "name"), [("a dog", "dog"), ("a red car", "car")])
def test_the_first_five_scenes_hold_what_was_asked_for(
    bundled: Server, gallery: GalleryInfo, words: str, name: str
) -> None:
    hits = bundled.get("search", q=words, method="vse_infty", k=5)["hits"]
    assert len(hits) == 5
    for hit in hits:
        assert has(gallery, hit["image_id"], name)
        assert name in hit["objects"]


@pytest.mark.parametrize("method", ["mv_vse", "vse_infty"])
def test_what_is_not_there_is_refused_and_true_captions_are_not(
    bundled: Server, gallery: GalleryInfo, method: str
) -> None:
    gibberish = bundled.get("search", q="asdfgh qwerty", method=method, k=3)
    assert gibberish["matches"] is False
    assert [word["word"] for word in gibberish["unknown"]] == ["asdfgh", "qwerty"]
    assert max(hit["probability"] for hit in gibberish["hits"]) < 0.1
    settings = {str(image.setting) for image in gallery.images}
    displayed = {(entry.name, image.setting) for image in gallery.images for entry in image.objects}
    refused = []
    for name in sorted({name for name, _ in displayed})[::8]:  # where no image shows such a thing
        only = [f"setting:{item}" for item in sorted(settings) if (name, item) not in displayed]
        if only:
            answer = bundled.get("search", q=f"a {name}", method=method, k=3, filter=only)
            refused.append(answer["matches"] is False)
    assert len(refused) >= 15
    assert np.mean(refused) >= 0.85
    captions = [gallery.images[i].captions[i // 50 % 5].text for i in range(0, 1000, 50)]
    results = [bundled.get("search", q=text, method=method, k=3) for text in captions]
    assert sum(answer["matches"] for answer in results) >= 19
    for answer in results:
        sure = [hit["probability"] for hit in answer["hits"]]
        assert sure == sorted(sure, reverse=True)


def test_a_scene_finds_itself_and_its_captions(bundled: Server, gallery: GalleryInfo) -> None:
    image = 17
    content = (PACK / "gallery" / gallery.images[image].file).read_bytes()
    answer = bundled.search_image(content, method="vse_infty", k=5).json()
    assert answer["images"][0]["image_id"] == image
    assert answer["unfamiliar"] is False
    true = {c.text for c in gallery.captions if image in c.relevant}
    assert sum(caption["text"] in true for caption in answer["captions"]) >= 3


def test_every_method_of_the_pack_is_measured(bundled: Server) -> None:
    info = bundled.get("info")
    assert info["gallery"]["searchable"] == info["gallery"]["pictures"] == 1000
    assert info["gallery"]["refused"] == []
    for method in info["methods"].values():
        assert "evaluate --pack" in method["metrics"]["command"]
        assert method["parity"]["ranking"] is True
