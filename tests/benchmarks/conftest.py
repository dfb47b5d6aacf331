"""The tiny packs of the app's tests, and the app over one of them."""

from tests.app.conftest import many_pack, many_server, serve, serve_all, tiny_pack

__all__ = ["many_pack", "many_server", "serve", "serve_all", "tiny_pack"]
