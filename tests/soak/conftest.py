"""Fixtures of the tests of the app that the random tests use."""

from tests.app.conftest import serve, tiny_pack

__all__ = ["serve", "tiny_pack"]
