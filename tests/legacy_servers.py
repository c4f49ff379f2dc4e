"""Real servers of the generation before extensions (2025-11-25, core Tasks) as pytest fixtures.

``conftest.py`` imports the fixtures. The tools are those of ``servers/legacy_python.py``; the server
on Node has the same. Where one cannot be installed, the tests that need it are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pytest

from ._forked import make_command
from ._legacy_installs import NODE_SERVER, NotInstalled, node_modules, python_with_legacy_sdk
from .real_server import fetch, listening

__all__ = [
    "Arrived",
    "Kind",
    "LegacyProgram",
    "LegacyServer",
    "anywhere",
    "legacy_node_program",
    "legacy_node_server",
    "legacy_program",
    "legacy_python_program",
    "legacy_python_server",
    "legacy_server",
]

Kind: TypeAlias = Literal["python", "node", "anywhere"]
"""The last one is :func:`anywhere`."""

KINDS: Final[tuple[Kind, ...]] = ("python", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """One request over HTTP, as the server saw it arrive.

    ``at`` is in ``time.monotonic()`` seconds of the same machine. Of a GET and a DELETE there is no
    message; of the client's own replies there is no method, but ``result`` or ``error``.
    """

    verb: str
    at: float
    session_id: str | None
    http_status: int | None
    """``None`` while there is no answer."""

    method: str | None
    id: str | int | None
    params: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class LegacyServer:
    """A running server."""

    kind: Kind
    url: str
    pid: int

    def witness(self, method: str | None = None, *, session_id: str | None = None) -> list[Arrived]:
        """What has arrived so far, oldest first.

        Args:
            method: Only this JSON-RPC method, such as ``"tasks/get"``.
            session_id: Only with this ``Mcp-Session-Id``.
        """
        return [
            entry
            for entry in (Arrived(**fields) for fields in fetch(self.url, "/witness"))
            if method in (None, entry.method) and session_id in (None, entry.session_id)
        ]


@dataclass(frozen=True, slots=True)
class LegacyProgram:
    """An installed server, which can be started."""

    kind: Kind
    interpreter: str
    script: Path
    options: tuple[str, ...] = ()

    def stdio(self, *options: str) -> list[str]:
        """The command of a server that speaks over stdin and stdout."""
        command = [self.script, *self.options, *options, "stdio"]
        if self.script.suffix == ".py":
            return make_command(*command, interpreter=self.interpreter)
        return [self.interpreter, *map(str, command)]

    @contextmanager
    def listening(self, log: Path, *options: str) -> Iterator[LegacyServer]:
        """A server of its own over HTTP, for a test that must not share one.

        Args:
            log: File for the server's stderr; its end is shown if the server does not start.
            options: Of the command line: ``--poll-interval-ms``, ``--json-response``, and of the
                Python server ``--as-shipped``.
        """
        arguments = [*self.options, *options, "http"]
        with listening(self.script, log, *arguments, interpreter=self.interpreter) as (url, pid):
            yield LegacyServer(self.kind, url, pid)


def anywhere(node: LegacyProgram) -> LegacyProgram:
    """The server on Node, with tasks that are known in any session, as where replicas share a store."""
    return replace(node, kind="anywhere", options=(*node.options, "--any-session"))


@pytest.fixture(scope="session")
def legacy_python_program() -> LegacyProgram:
    """The server on the Python SDK's last 1.x."""
    script = Path(__file__).parent / "servers" / "legacy_python.py"
    return LegacyProgram("python", str(installed(python_with_legacy_sdk)), script)


@pytest.fixture(scope="session")
def legacy_node_program() -> LegacyProgram:
    """The server on the TypeScript SDK's 1.x."""
    modules = installed(node_modules)
    return LegacyProgram("node", "node", NODE_SERVER / "server.mjs", ("--installed", str(modules)))


def installed(install: Callable[[], Path]) -> Path:
    try:
        return install()
    except NotInstalled as reason:
        pytest.skip(f"the legacy server cannot be installed: {reason}")


@pytest.fixture(scope="session")
def legacy_python_server(
    legacy_python_program: LegacyProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LegacyServer]:
    """The server on the Python SDK, shared by the whole session."""
    with legacy_python_program.listening(tmp_path_factory.mktemp("legacy_python") / "stderr.log") as server:
        yield server


@pytest.fixture(scope="session")
def legacy_node_server(
    legacy_node_program: LegacyProgram, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LegacyServer]:
    """The server on the TypeScript SDK, shared by the whole session."""
    with legacy_node_program.listening(tmp_path_factory.mktemp("legacy_node") / "stderr.log") as server:
        yield server


@pytest.fixture(params=KINDS)
def legacy_server(request: pytest.FixtureRequest) -> LegacyServer:
    """Each of the two shared servers."""
    server = request.getfixturevalue(f"legacy_{request.param}_server")
    assert isinstance(server, LegacyServer)
    return server


@pytest.fixture(params=KINDS)
def legacy_program(request: pytest.FixtureRequest) -> LegacyProgram:
    """Each of the two servers, to be started."""
    program = request.getfixturevalue(f"legacy_{request.param}_program")
    assert isinstance(program, LegacyProgram)
    return program
