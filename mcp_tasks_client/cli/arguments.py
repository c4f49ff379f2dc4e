"""The arguments of a tool, as a command line gives them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mcp_tasks_client as tasks

from .exits import CommandError, Exit
from .listing import list_tools

__all__ = ["read_arguments", "read_json"]


def read_json(given: str) -> dict[str, Any]:
    """The JSON object that an option gives: as text, as ``@file``, or on stdin as ``-``.

    Raises:
        CommandError: It cannot be read, or is no JSON object.
    """
    try:
        if given == "-":
            text = sys.stdin.read()
        elif given.startswith("@"):
            text = Path(given[1:]).read_text(encoding="utf-8")
        else:
            text = given
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise CommandError(Exit.USAGE, f"--input-json cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise CommandError(Exit.USAGE, f"--input-json must be a JSON object, not {json.dumps(value)[:40]}")
    return value


async def read_arguments(
    client: tasks.TasksClient, tool: str, pairs: Sequence[str], input_json: str | None
) -> dict[str, Any]:
    """The arguments that a line gives: those of its JSON, and each pair on top.

    The server is asked for the tool's schema if a pair may be a number or a boolean.

    Raises:
        CommandError: A pair or the JSON makes no sense, or the server could not be asked for the schema.
    """
    from mcp_tasks_client.forms import read_pairs  # on use: help is shown without it

    arguments = {} if input_json is None else read_json(input_json)
    schema = await _find_schema(client, tool) if any(map(_may_be_typed, pairs)) else {}
    try:
        return {**arguments, **read_pairs(pairs, schema)}
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error)) from None


def _may_be_typed(pair: str) -> bool:
    """True for a pair whose value the schema may make a number or a boolean."""
    name, _, value = pair.partition("=")
    return not name.endswith(":") and (value in ("true", "false") or value[-1:].isdigit())


async def _find_schema(client: tasks.TasksClient, tool: str) -> dict[str, Any]:
    """The input schema of a tool; ``{}`` where the server lists no such tool."""
    async for one in list_tools(client):
        if one.name == tool:
            return one.input_schema
    return {}
