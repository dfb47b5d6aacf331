"""The tiny packs of the app's tests."""

from tests.app.conftest import many_pack, tiny_pack

__all__ = ["many_pack", "tiny_pack"]
