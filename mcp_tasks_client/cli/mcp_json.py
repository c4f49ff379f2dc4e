"""One server of an ``mcp.json`` that was named on the command line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp_tasks_client.foreign_text import one_line

from .exits import CommandError, Exit

__all__ = ["Entry", "read_entry"]

_KEYS: Final = ("url", "headers", "command", "args", "env", "cwd")
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of one server in a file, with its variables filled in: a URL, or a command."""

    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


def read_entry(path: str, name: str) -> Entry:
    """The server of this name in a file. No other file is read.

    ``${VAR}`` and ``${VAR:-default}`` are filled in from the environment. Messages quote no value.

    Raises:
        CommandError: The file, the server or a variable is not there, or makes no sense.
    """
    entry = _find_entry(path, name)
    given: dict[str, Any] = {key: entry[key] for key in _KEYS if key in entry}
    if entry.get("type") == "sse":
        raise _error(path, f"{name!r} speaks the transport SSE, which mcp-tasks does not speak")
    if isinstance(given.get("url"), str) is isinstance(given.get("command"), str):
        raise _error(path, f"{name!r} needs a url or a command")
    for key in ("url", "command", "cwd"):
        if not isinstance(given.get(key, ""), str):
            raise _error(path, f"{key} of {name!r} must be a text")
    if not _are_texts(given.get("args", []), list):
        raise _error(path, f"args of {name!r} must be a list of texts")
    for key in ("headers", "env"):
        if not _are_texts(given.get(key, {}), dict):
            raise _error(path, f"{key} of {name!r} must be an object of texts")
    filled = {key: _fill(value, path) for key, value in given.items()}
    return Entry(**{**filled, "args": tuple(filled.get("args", ()))})


def _find_entry(path: str, name: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _error(path, f"it cannot be read: {error.strerror}. A SERVER is a URL or FILE:NAME") from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is not UTF-8, or too deep"
        raise _error(path, f"it is no JSON: {reason}") from None
    found = content if isinstance(content, dict) else {}
    servers = next((found[key] for key in ("mcpServers", "servers") if key in found), None)
    if not isinstance(servers, dict):
        raise _error(path, "it has no object mcpServers or servers")
    if not isinstance(servers.get(name), dict):
        names = ", ".join(one_line(repr(one), 60) for one in list(servers)[:20]) or "none"
        raise _error(path, f"it has no server {name!r}. It has: {names}")
    entry: dict[str, Any] = servers[name]
    return entry


def _are_texts(value: Any, kind: type[list[Any] | dict[str, Any]]) -> bool:
    if not isinstance(value, kind):
        return False
    return all(isinstance(one, str) for one in (value.values() if isinstance(value, dict) else value))


def _fill(value: Any, path: str) -> Any:
    """A value of an entry with its variables filled in."""
    if isinstance(value, dict):
        return {key: _fill(one, path) for key, one in value.items()}
    if isinstance(value, list):
        return [_fill(one, path) for one in value]

    def fill(match: re.Match[str]) -> str:
        named = _NAME.fullmatch(match[1])
        if named is None:
            raise _error(path, f"{match[0]!r} cannot be filled in. ${{VAR}} and ${{VAR:-default}} can")
        found = os.environ.get(named[1])
        if named[2] is not None:
            return found or named[2]
        if found is None:
            raise _error(path, f"the environment variable {named[1]!r} is not set")
        return found

    return _VARIABLE.sub(fill, value)


def _error(path: str, problem: str) -> CommandError:
    return CommandError(Exit.USAGE, f"{path}: {problem}.")
