"""While the Hub is in trouble, the app answers on the pack it has, and says what is the matter."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.app.packs.test_obtaining import ID, stock_pack
from tests.app.serving import Serve
from tests.export.hub_server import Fault, running_hub

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_searches_go_on_despite_the_hub(serve: Serve, tiny_pack: Path, tmp_path: Path) -> None:
    with running_hub() as hub:
        stock_pack(hub, tiny_pack)
        variables = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_TOKEN_PATH": str(tmp_path / "no-token"),
            "NO_PROXY": "127.0.0.1",
        }
        server = serve("--pack", tiny_pack, **variables)
        hub.faults[f"GET /api/models/{ID}"] = Fault("silent")
        with ThreadPoolExecutor() as pool:
            look = pool.submit(server.refusal, "packs/look", address=ID)
            hits = server.get("search", q="a red circle", method="vsepp", k=2)["hits"]
            assert len(hits) == 2
            assert not look.done()
            assert "timed out" in look.result(60)

        hub.faults = {"GET /api": Fault("status", 429, {"Retry-After": "77"})}
        assert "wait 77 s" in server.refusal("packs/look", address=ID)
        assert server.get("search", q="a red circle", method="vsepp", k=2)["hits"] == hits
        hub.faults = {}
        assert server.post("packs/look", address=ID)["parts"][0]["repository"] == ID
