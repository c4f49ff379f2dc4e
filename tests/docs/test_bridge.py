"""The pages of the bridge: their entries run, their table of hosts is the one that the bridge goes by."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from typer.main import get_command

from mcp_tasks_client.bridge import known_hosts
from mcp_tasks_client.cli.program import app

from .pages import PORT, ROOT, blocks_of, programs
from .server import QUICKER

GUIDE: Final = ROOT / "docs" / "guides" / "bridge.md"
HOSTS: Final = ROOT / "docs" / "guides" / "bridge-hosts.md"
LIMIT_S: Final = 60.0

Command = tuple[str, ...]


def entries(page: Path) -> list[Command]:
    """The commands of the entries on a page, in whatever a host writes them."""
    found = []
    for language, block in re.findall(r"^```(json|toml)\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        read = json.loads(block) if language == "json" else tomllib.loads(block)
        found += list(_commands(read))
    return found


def _commands(read: Any) -> Iterator[Command]:
    match read:
        case {"command": str(command), "args": list(arguments)}:
            yield (command, *arguments)
        case {"command": list(words)}:
            yield tuple(words)
        case dict():
            for value in read.values():
                yield from _commands(value)


def use(command: str, arguments: Sequence[str], folder: Path) -> None:
    """Start an entry, list its tools, and call one that requires a task, of which the host knows nothing."""
    anyio.run(_use, command, arguments, folder)


async def _use(command: str, arguments: Sequence[str], folder: Path) -> None:
    environment = {
        "HOME": str(folder),  # as bare as hosts give it
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(folder),
    }
    parameters = StdioServerParameters(command=command, args=[*arguments], env=environment, cwd=folder)
    with anyio.fail_after(LIMIT_S):
        async with Client(stdio_client(parameters)) as host:
            names = {tool.name for tool in (await host.list_tools()).tools}
            assert {"build", "deploy", "task_result", "task_list", "task_cancel"} <= names
            result = await host.call_tool("build", {"service": "web"})
            assert [part.text for part in result.content if part.type == "text"] == ["web is built"]


@pytest.mark.parametrize("page", [GUIDE, ROOT / "README.md"], ids=lambda page: page.stem)
def test_the_entry_of_a_page_runs(page: Path, docs_server: str, tmp_path: Path) -> None:
    command, *arguments = entries(page)[0]
    at = [one.replace(PORT, docs_server) for one in arguments]
    assert at != arguments
    use(command, at, tmp_path)


def test_the_entry_of_a_command_runs(tmp_path: Path) -> None:
    [(command, *arguments)] = [one for one in entries(GUIDE) if "--" in one]
    source, run, _ = programs()["server.py"].partition("mcp.run(")
    assert run
    for old, new in QUICKER.items():
        source = source.replace(old, new)
    (tmp_path / "stdio_server.py").write_text(f"{source}mcp.run(show_banner=False)\n", "utf-8")
    use(command, arguments, tmp_path)


def test_the_program_of_the_guide_serves_a_host(docs_server: str, tmp_path: Path) -> None:
    [block] = blocks_of(GUIDE)
    program = tmp_path / "my_bridge.py"
    program.write_text(f"{block.replace(PORT, docs_server)}\nimport asyncio\nasyncio.run(main())\n", "utf-8")
    use(sys.executable, [str(program)], tmp_path)


def test_every_host_has_the_entry_that_runs() -> None:
    found = entries(HOSTS)
    assert len(found) == 4
    assert set(found) == {entries(GUIDE)[0]} == set(entries(ROOT / "README.md"))


def test_every_entry_has_options_of_the_verb() -> None:
    verb: Any = get_command(app).commands["bridge"]  # type: ignore[attr-defined]  # a group has them
    options = {name for parameter in verb.params for name in parameter.opts}
    for command in [*entries(GUIDE), *entries(HOSTS)]:
        assert command[:2] == ("mcp-tasks", "bridge")
        named = {word for word in " ".join(command).partition(" -- ")[0].split() if word.startswith("--")}
        assert named <= options
    table = GUIDE.read_text("utf-8").partition("| option | |\n")[2].partition("\n\n")[0]
    told = {name for row in table.splitlines() for name in re.findall(r"--[a-z][\w-]+", row.split("|")[1])}
    assert told == options - {"--help", "--install-completion", "--show-completion", "server"}


def test_the_table_of_hosts_is_the_one_that_the_bridge_goes_by() -> None:
    table = HOSTS.read_text("utf-8").partition("| host | it calls itself |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    told: Mapping[str, float] = {
        found[1]: float(cells[4]) for cells in rows if (found := re.match(r"`([^`]+)`", cells[1]))
    }
    assert {name: known_hosts.default_answer_within(name) for name in told} == told
    assert set(known_hosts._KNOWN_S) <= set(told)
    # Each host has a section, which says whether it was run.
    titles = re.findall(r"^## (.+)\n\n(\*\*Not run\.\*\*|Run with |In an )", HOSTS.read_text("utf-8"), re.M)
    assert len(titles) == len(rows)
