"""While the Hub is in trouble, the app answers on the pack it has, and says what is the matter."""

from pathlib import Path

import pytest
from gradio_client import Client

from tests.app.packs.test_obtaining import ID, stock_pack
from tests.app.serving import Serve
from tests.export.faults import Fault
from tests.export.hub_server import running_hub

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
        visitor = Client(server.url, verbose=False)

        hub.faults[f"GET /api/models/{ID}"] = Fault("silent")
        pressed = visitor.submit("pack", ID, api_name="/load_pack")
        hits = server.ask("search_text", "a red circle", "vsepp", 2)["hits"]
        assert len(hits) == 2
        assert not pressed.done()
        sentence = str(pressed.result(60))
        assert "timed out" in sentence
        assert "Shapes &lt;b&gt; goes on serving" in sentence

        hub.faults = {"GET /api": Fault("status", 429, {"Retry-After": "77"})}
        assert "wait 77 s" in str(visitor.predict("pack", ID, api_name="/load_pack"))
        assert server.ask("search_text", "a red circle", "vsepp", 2)["hits"] == hits
        assert server.ask("info")["pack"]["from"] is None
        hub.faults = {}
        sentence = str(visitor.predict("pack", ID, api_name="/load_pack"))
        assert "To download: at most" in sentence
