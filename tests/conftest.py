"""Fixtures that every test module shares."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import hypothesis  # it asks who refers to what as it is imported, and nobody sees what is frozen
import pytest

from tests._forked import fork_for_all
from tests._halves import leave_one_half, runs_whole
from tests._legacy_installs import CERTIFICATES_ELSEWHERE
from tests.docs.server import docs_server
from tests.kit.ports import unused_port
from tests.legacy_servers import (
    legacy_node_program,
    legacy_node_server,
    legacy_program,
    legacy_python_program,
    legacy_python_server,
    legacy_server,
)
from tests.postgres import postgres
from tests.real_server import real_server
from tests.strict_server import strict_server
from tests.telling_server import telling_fastmcp, telling_sdk

__all__ = [
    "anyio_backend",
    "docs_server",
    "legacy_node_program",
    "legacy_node_server",
    "legacy_program",
    "legacy_python_program",
    "legacy_python_server",
    "legacy_server",
    "postgres",
    "real_server",
    "strict_server",
    "telling_fastmcp",
    "telling_sdk",
    "unused_url",
]


# The workers of xdist, and hundreds of processes besides, import the same modules. What one of them has
# compiled is there for the next, though the environment says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A property holds or not. How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Each HTTP client reads the certificates that it trusts: 15 milliseconds, a thousand times, of a file.
# Of a folder nothing is read before it is needed, and no test needs an authority but its own.
if CERTIFICATES_ELSEWHERE not in os.environ:
    os.environ[CERTIFICATES_ELSEWHERE] = os.environ.pop("SSL_CERT_FILE", "")
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

# Looking for garbage at every turn takes a tenth of the run. Whoever tests what is dropped collects it
# there and then. While the tests are collected there is none.
gc.set_threshold(50_000, 20, 20)
gc.disable()

# A shell that starts the tests in the background has SIGINT ignored. Programs of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# FastMCP's worker polls its queue 20 times a second, though the queue wakes it at once. The servers of a
# run, which are idle most of the time, would spend a twentieth of its CPU time on that.
os.environ.setdefault("FASTMCP_DOCKET_MINIMUM_CHECK_INTERVAL", "PT0.25S")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops that the package supports."""
    return request.param, {}


@pytest.fixture
def unused_url() -> str:
    """A loopback URL at which nobody listens."""
    return f"http://127.0.0.1:{unused_port()}/mcp"


def pytest_configure(config: pytest.Config) -> None:
    """All workers of xdist share the process that programs are forked from."""
    if config.getoption("numprocesses", None):
        fork_for_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the campaigns in their long forms")
    parser.addoption("--rest", action="store_true", help="run what pytest alone leaves out")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Whoever reads the count of deselected tests sees how to run them."""
    if config.getoption("--rest"):
        return "the tests that pytest alone leaves out"
    return None if runs_whole(config) else "the first half of the tests: pytest --rest runs the others"


@pytest.hookimpl(tryfirst=True)  # before -k takes cases away: the rule is about all cases of a test
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_one_half(config, items)


def pytest_collection_finish() -> None:
    """What there is by now stays to the end, and need not be looked at each time garbage is looked for."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Three more than there are cores, for most tests wait: for servers, for processes, for the disk."""
    return (os.cpu_count() or 1) + 3
