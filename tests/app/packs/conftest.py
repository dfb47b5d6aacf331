"""The Hub of the export's tests."""

from tests.export.conftest import server as hub

__all__ = ["hub"]
