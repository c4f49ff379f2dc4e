"""The words of a server about itself, remembered so that a host need not wait for them.

A host waits some seconds for a server that it starts, and the real server may be away. So ``initialize`` is
answered from the words that the server said last. They are kept in a file of the user's alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from mcp_types import SERVER_INFO_META_KEY

import mcp_tasks_client as tasks

__all__ = ["Introduction"]

_TASKS: Final = "io.modelcontextprotocol/tasks"

_FIRST_WAIT_S: Final = 1.0
"""Seconds for which a host waits for a server that has never introduced itself here."""

_ASK_S: Final = 30.0
"""Seconds for the reply of a server that no request waits for."""

_UNKNOWN: Final[dict[str, Any]] = {
    "capabilities": {
        "completions": {},
        "logging": {},
        "prompts": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "tools": {"listChanged": True},
    }
}
"""Everything is declared of a server that is not known yet. Lists that it lacks are empty."""


class Introduction:
    """The introduction of one server.

    Args:
        folder: Where it is kept; ``None`` keeps it in memory.
        endpoint: Names the file: a URL, a command, or the server's name in the journal.
    """

    def __init__(self, folder: Path | None, endpoint: str) -> None:
        name = hashlib.sha256(endpoint.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._file = None if folder is None else folder / f"{name}.json"
        self._said: dict[str, Any] | None = None
        self._is_fresh = False

    @property
    def server_info(self) -> dict[str, Any]:
        """The server's name and version, or ours if it has not said any."""
        said = (self._said or {}).get("serverInfo")
        return said if isinstance(said, dict) and said.get("name") else _own_info()

    @property
    def instructions(self) -> str | None:
        """The server's words for models; ``None`` if it has none."""
        said = (self._said or {}).get("instructions")
        return said if isinstance(said, str) else None

    @property
    def capabilities(self) -> dict[str, Any]:
        """The server's capabilities for a host that is not to know of tasks."""
        said = (self._said or _UNKNOWN).get("capabilities")
        shown = {name: value for name, value in (said or {}).items() if name != "tasks"}
        if isinstance(shown.get("extensions"), dict):
            others = {name: value for name, value in shown["extensions"].items() if name != _TASKS}
            shown["extensions"] = others
            if not others:
                del shown["extensions"]
        return {"tools": {"listChanged": True}, **shown}

    async def learn(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        """Have an introduction: from the file, or else from the server, if it replies within a second.

        Args:
            ask: Asks the server.
        """
        if self._said is None and self._file is not None:
            self._said = await to_thread.run_sync(_read, self._file)
        if self._said is None:
            with anyio.move_on_after(_FIRST_WAIT_S):
                await self.refresh(ask)

    async def refresh(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> bool:
        """Ask the server, unless it has replied to this process before. Returns whether its words are new."""
        if self._is_fresh:
            return False
        try:
            with anyio.fail_after(_ASK_S):
                raw = await ask()
        except (tasks.TasksClientError, TimeoutError):
            return False  # it is away, and each request says so
        meta, declared = raw.get("_meta"), raw.get("capabilities")
        info = meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
        said = {
            "capabilities": declared if isinstance(declared, dict) else {},
            "instructions": raw.get("instructions"),
            "serverInfo": info or raw.get("serverInfo"),
        }
        self._is_fresh, before, self._said = True, self._said, said
        if said != before and self._file is not None:
            await to_thread.run_sync(_write, self._file, said)
        return before is not None and said != before


def _own_info() -> dict[str, Any]:
    return {"name": "mcp-tasks bridge", "version": importlib.metadata.version("mcp-tasks-client")}


def _read(file: Path) -> dict[str, Any] | None:
    try:
        said = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    is_whole = isinstance(said, dict) and isinstance(said.get("capabilities"), dict)
    return said if is_whole else None


def _write(file: Path, said: dict[str, Any]) -> None:
    """Write the file. A host that finds it half written, or unwritten, waits for the server instead."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(json.dumps(said))
