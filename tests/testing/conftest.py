"""A scripted server on a manual clock."""

from __future__ import annotations

import pytest

from mcp_tasks_client.testing import ManualClock, ScriptedServer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock) -> ScriptedServer:
    return ScriptedServer(clock=clock)
