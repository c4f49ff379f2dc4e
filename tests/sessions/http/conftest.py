"""Fixtures of the tests of the session over HTTP."""

from __future__ import annotations

import pytest

from mcp_tasks_client.sessions.http.http_session import HttpSession

from .scripted import CLIENT_INFO, HttpAnswers


@pytest.fixture
def server() -> HttpAnswers:
    return HttpAnswers()


@pytest.fixture
def session(server: HttpAnswers) -> HttpSession:
    """Made outside of any event loop, as hosts do at import time."""
    return server.session(client_info=CLIENT_INFO)
