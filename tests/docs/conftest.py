"""Fixtures of the tests of the documentation."""

from tests.docs.server import docs_server

__all__ = ["docs_server"]
