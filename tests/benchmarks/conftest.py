"""The tiny pack of the app's tests."""

from tests.app.conftest import tiny_pack

__all__ = ["tiny_pack"]
