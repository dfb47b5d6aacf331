"""Fixtures of the app's tests."""

from tests.app.conftest import bundled_cache, group_server, many_pack, private, serve, tiny_pack

__all__ = ["bundled_cache", "group_server", "many_pack", "private", "serve", "tiny_pack"]
