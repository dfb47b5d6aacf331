"""The tiny packs of the app's tests."""

from tests.app.conftest import many_pack, private, serve, tiny_pack

__all__ = ["many_pack", "private", "serve", "tiny_pack"]
