"""``mcp-tasks tools``: what a server lists, written so that a line of ``call`` can be made of it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client.cli.exits import Exit
from tests.cli.test_exits import World, world
from tests.kit.current_server import ACKNOWLEDGED, Http
from tests.kit.terminal import run_command
from tests.real_server import RealServer

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

BUILD: Final[dict[str, Any]] = {
    "name": "build",
    "title": "Build",
    "description": "Builds a service.\nIt takes an hour.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "service": {"type": "string", "description": "Which one.", "minLength": 2},
            "seconds": {"type": "number", "default": 2.5},
            "fast": {"type": "boolean", "default": False},
            "colour": {"enum": ["red", "green"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "owner": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["service", "tags", "colour"],
    },
    "execution": {"taskSupport": "required"},
}
PLAIN: Final[dict[str, Any]] = {"name": "plain", "inputSchema": {"type": "object"}}
WHOLE: Final[dict[str, Any]] = {
    "name": "whole",
    "inputSchema": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
}
SIGNATURE: Final = (
    "build service=<text> [seconds=<number, or else 2.5>] [fast=<boolean, or else false>] "
    "colour=<red|green> tags:=<json> [owner=<text>]"
)


def listing(*tools: dict[str, Any], following: str | None = None) -> dict[str, Any]:
    """A page of the server's list."""
    after = {} if following is None else {"nextCursor": following}
    return {**ACKNOWLEDGED, "tools": [*tools], "ttlMs": 0, "cacheScope": "public", **after}


async def run(here: World, *arguments: str) -> Any:
    return await here.run("tools", "URL", *arguments)


async def test_a_list_has_the_signature_and_one_line_of_each_tool(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = listing(BUILD, PLAIN, WHOLE)
        ran = await run(here)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        SIGNATURE,
        "    Builds a service. It takes an hour. The call becomes a task, always.",
        "plain",
        "whole --input-json <json>",
    ]
    assert not here.journal.exists(), "a list leaves nothing behind"
    assert not here.server.counts["tools/call"]


async def test_one_tool_is_described_whole_with_a_line_that_calls_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = listing(PLAIN, BUILD)
        ran = await run(here, "build")
        assert ran.out.startswith(f"{SIGNATURE}\nBuild\n\nBuilds a service.\nIt takes an hour.\n")
        assert "      Which one. (a text of at least 2 characters)\n" in ran.out
        assert '"minLength": 2' in ran.out
        line = ran.out.splitlines()[-1]
        program, *words = shlex.split(line)
        assert program == "mcp-tasks"
        assert words == ["call", here.url, "build", "service=TEXT", "colour=red", "tags:=[]"]
        assert (await here.run(*words)).code == 0
        (sent,) = [params for method, params in here.server.received if method == "tools/call"]
    assert sent["arguments"] == {"service": "TEXT", "colour": "red", "tags": []}


async def test_json_has_the_objects_of_the_server_over_all_pages(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = lambda _, params: (
            listing(PLAIN, WHOLE) if params.get("cursor") == "2" else listing(BUILD, following="2")
        )
        assert (await run(here, "--json")).document == [BUILD, PLAIN, WHOLE]
        assert (await run(here, "plain", "--json")).document == PLAIN


async def test_a_list_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = listing(PLAIN, following="again")
        ran = await run(here, "--json")
    assert (ran.code, ran.out) == (Exit.UNEXPECTED, "")
    assert "more than 100 pages" in ran.error["message"]


async def test_a_tool_that_is_not_there_is_named_with_the_line_that_lists_them(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        ran = await run(here, "nothing", "--json")
        assert ran.error == {
            "code": "usage",
            "message": "The server has no tool 'nothing'.",
            "record": None,
            "next": f"mcp-tasks tools {here.url}",
        }
        assert ran.code == Exit.USAGE


async def test_a_list_that_was_not_read_says_why(tmp_path: Path) -> None:
    away = await anyio.to_thread.run_sync(run_command, tmp_path / "j", "tools", "http://127.0.0.1:9/mcp")
    assert away.code == Exit.UNREACHABLE
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = Http("401 Unauthorized")
        assert (await run(here)).code == Exit.CREDENTIAL_REFUSED
        here.server.replies["tools/list"] = Http("503 Service Unavailable")
        assert (await run(here)).code == Exit.UNREACHABLE
        assert (await here.run("call", "URL", "tool", "n=1")).code == Exit.UNREACHABLE, "no tool may have run"
    assert not here.server.counts["tools/call"]


HOSTILE: Final = "\x1b]0;owned\x07\x1b[2J\u202e\u200bred\rgone"


async def test_no_word_of_a_server_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    described = {
        "type": "object",
        "properties": {
            HOSTILE: {"type": "string", "title": HOSTILE, "description": HOSTILE, "default": HOSTILE},
            "c": {"enum": [HOSTILE, "other"], "default": HOSTILE},
        },
        "required": [HOSTILE, "c"],
    }
    tool = {"name": HOSTILE, "title": HOSTILE, "description": HOSTILE, "inputSchema": described}
    async with world(tmp_path) as here:
        here.server.replies["tools/list"] = listing(tool)
        for arguments in ([], [HOSTILE], ["--json"], [HOSTILE, "--json"]):
            ran = await run(here, *arguments)
            assert "red" in ran.out
            for text in (ran.out, ran.err):
                assert all(character.isprintable() or character == "\n" for character in text)


async def test_a_real_server(real_server: RealServer, tmp_path: Path) -> None:
    ran = await anyio.to_thread.run_sync(run_command, tmp_path / "j", "tools", real_server.url)
    assert ran.code == 0
    assert "typed [name=<text, or else Bern>]\n" in ran.out
    assert "routed region=<text> [load=<integer, or else 1>]\n" in ran.out
