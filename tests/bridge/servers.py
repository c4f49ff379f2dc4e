"""The servers behind the bridge of a real host, each with what it can do. The tests go by that."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from tests.legacy_servers import LegacyServer
from tests.real_server import RealServer

from .turns import Turn

__all__ = ["SERVERS", "Opened", "Server"]

Tool: TypeAlias = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a generation of servers.

    Attributes:
        by_situation: Each with its arguments.
        slow: The arguments of ``slow``, by the seconds that it takes.
        plain_text: What ``plain`` returns.
    """

    by_situation: Mapping[str, Tool]
    slow: Callable[[float], Mapping[str, Any]]
    plain_text: str


CURRENT: Final = Tools(
    {
        "plain": ("plain", {"x": 3}),
        "requires": ("must_task", {"n": 3}),
        "asks": ("ask_name", {}),
        "fails": ("fail_tool", {}),
        "breaks": ("fail_rpc", {}),
    },
    lambda seconds: {"seconds": seconds},
    "3",
)
OLDER: Final = Tools(
    {
        "plain": ("plain", {}),
        "requires": ("must", {"n": 3}),
        "asks": ("asks", {}),
        "fails": ("fails", {"how": "completed"}),
        "breaks": ("fails", {"how": "message"}),
    },
    lambda seconds: {"duration_ms": round(seconds * 1000)},
    "plain",
)


@dataclass(frozen=True, slots=True)
class Opened:
    """A server that a bridge can reach.

    Attributes:
        words: The end of the bridge's line.
        methods: Those of the requests that have arrived since it was opened.
    """

    words: list[str]
    methods: Callable[[], list[str | None]]


@dataclass(frozen=True)
class Server(ABC):
    """A server.

    Attributes:
        name: In the tests' names.
        tools: Its tools.
        fixture: The fixture of pytest that has it.
        makes_tasks: Calls become tasks.
        keeps_calls: They go on when the bridge has ended.
        is_command: The bridge starts it, and again if it has ended.
        calls_to_ask: The ``tools/call`` that a tool takes which asks once.
    """

    name: str
    tools: Tools
    fixture: str
    makes_tasks: bool = field(default=True, kw_only=True)
    calls_to_ask: int = field(default=1, kw_only=True)
    is_command: ClassVar[bool]

    @property
    def keeps_calls(self) -> bool:
        return self.makes_tasks and not self.is_command

    @abstractmethod
    def open(self, found: Any, folder: Path) -> Opened:
        """What the fixture has, for one test."""

    def turn(self, situation: str, **more: Any) -> Turn:
        tool, arguments = self.tools.by_situation[situation]
        return Turn(tool, arguments, **more)

    def slow(self, seconds: float, **more: Any) -> Turn:
        return Turn("slow", self.tools.slow(seconds), **more)


class Listening(Server):
    """A server at a URL."""

    is_command = False

    def open(self, found: RealServer | LegacyServer, folder: Path) -> Opened:
        already = len(found.witness())
        return Opened([found.url], lambda: [one.method for one in found.witness()[already:]])


class Piped(Server):
    """A server that is a command. A file gets a copy of all that it is told, by whichever bridge."""

    is_command = True

    def open(self, found: list[str], folder: Path) -> Opened:
        told = folder / "told.jsonl"
        told.touch()
        shell = [shutil.which("sh") or "sh", "-c", 'tee -a "$0" | "$@"', str(told)]

        def methods() -> list[str | None]:
            return [json.loads(line).get("method") for line in told.read_text().splitlines()]

        return Opened(["--", *shell, *found], methods)


SERVERS: Final = (
    Listening("fastmcp", CURRENT, "real_server"),
    Listening("mcp-1", OLDER, "legacy_python_server"),
    Listening("typescript", OLDER, "legacy_node_server"),
    Piped("fastmcp-stdio", CURRENT, "fastmcp_command"),
    Piped("mcp-1-stdio", OLDER, "legacy_python_command"),
    # Its tools ask by the reply to a call, which is repeated with the answer.
    Listening("no-tasks", CURRENT, "server_without_tasks", makes_tasks=False, calls_to_ask=2),
)
