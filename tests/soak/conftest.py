"""The tiny pack and the servers of the app's tests."""

from tests.app.conftest import serve, tiny_pack

__all__ = ["serve", "tiny_pack"]
