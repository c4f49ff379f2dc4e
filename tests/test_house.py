"""The rules of the house, shown by walking the imports of every module.

Imports for type checkers and imports inside functions count too, unless a rule says otherwise.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import mcp_tasks_client

from .real_server import RealServer

ROOT: Final = Path(mcp_tasks_client.__file__).parent
PACKAGE: Final = "mcp_tasks_client"
OLDER: Final = "tasks_2025_11_25"

ROOMS: Final = ("protocol", "machine", "journal", "sessions.base", "engine")
"""Each imports only those before it, and the modules that any room may import."""

FOR_ALL: Final = frozenset({"errors", "policy", "uncut", "own_task", "host_code"})

BETWEEN: Final = {"engine": frozenset({"callbacks"})}
"""Modules of the top level that one room may import besides."""

NAMED_BY_ERRORS: Final = (("errors", "handle"), ("errors", "journal.record"))
"""The one circle, for type checkers only: an error carries the handle and the record that it is about."""

IMPURE: Final = frozenset(
    {"anyio", "asyncio", "trio", "time", "random", "os", "io", "socket", "threading", "sqlite3", "httpx"}
    | {"aiohttp", "logging", "pathlib", "subprocess", "secrets", "uuid", "tenacity"}
)


class Import(NamedTuple):
    """One import of a module."""

    name: str
    """Of what is imported; without the package's own name where it is ours."""

    ours: bool
    late: bool
    """Whether it stands inside a function."""

    for_types: bool
    """Whether it stands under ``if TYPE_CHECKING``."""


@cache
def modules() -> dict[str, list[Import]]:
    """The imports of each module, by its dotted name below the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name] = list(_imports(ast.parse(path.read_text()), name, is_package=is_package))
    return found


def packages() -> set[str]:
    """The dotted names of the folders; the package's own is empty."""
    return {".".join(path.relative_to(ROOT).parts[:-1]) for path in ROOT.rglob("__init__.py")}


def _imports(tree: ast.Module, module: str, *, is_package: bool):  # type: ignore[no-untyped-def]  # a generator of Import
    names = {p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for p in ROOT.rglob("*.py")}

    def visit(node: ast.AST, *, late: bool, for_types: bool):  # type: ignore[no-untyped-def]  # as above
        for child in ast.iter_child_nodes(node):
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            types = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, ours=False, late=inside, for_types=types)
            elif isinstance(child, ast.ImportFrom) and not child.level:
                yield Import(child.module or "", ours=False, late=inside, for_types=types)
            elif isinstance(child, ast.ImportFrom):
                parts = module.split(".") if module else []
                up = child.level - is_package
                base = parts[: len(parts) - up] if up else parts
                target = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:
                    below = f"{target}.{alias.name}" if target else alias.name
                    yield Import(below if below in names else target, ours=True, late=inside, for_types=types)
            yield from visit(child, late=inside, for_types=types)

    return visit(tree, late=False, for_types=False)


def room_of(module: str) -> str | None:
    return next((room for room in ROOMS if module == room or module.startswith(f"{room}.")), None)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    allowed = {*ROOMS[: ROOMS.index(room) + 1]}
    wrong = [
        f"{module} imports {one.name or PACKAGE}"
        for module, imports in modules().items()
        if room_of(module) == room
        for one in imports
        if one.ours
        and room_of(one.name) not in allowed
        and one.name not in FOR_ALL | BETWEEN.get(room, frozenset())
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        module: {
            one.name
            for one in imports
            if one.ours
            and one.name != module
            and not ((module, one.name) in NAMED_BY_ERRORS and one.for_types)
            # The package itself is below nothing: its own modules see only its name.
            and one.name
        }
        for module, imports in modules().items()
        if module
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_nothing_imports_the_older_generation_but_one_late_import() -> None:
    importing = {
        (module, one.late or one.for_types)
        for module, imports in modules().items()
        if not module.startswith(OLDER)
        for one in imports
        if one.ours and one.name.startswith(OLDER)
    }
    # The package names TasksTransport for type checkers, and loads it when somebody asks for it.
    assert importing == {("client", True), ("", True)}


def test_the_rest_does_not_speak_of_the_older_generation() -> None:
    allowed = {
        "__init__.py": 2,  # where TasksTransport is
        "client.py": 1,  # the late import
    }
    speaking = {
        path.relative_to(ROOT).as_posix(): len(found)
        for path in ROOT.rglob("*.py")
        if OLDER not in path.parts and (found := re.findall(r"2025.?11.?25", path.read_text()))
    }
    assert speaking == allowed


def test_the_map_in_contributing_names_each_module_under_its_folder() -> None:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    mapped: list[str] = []
    folder = ""
    for line in text[text.index("## The map") : text.index("## How a call lives")].splitlines():
        if heading := re.match(r"\*\*(?:`([\w/]+)/`|The top level)", line):
            folder = (heading[1] or "").replace("/", ".")
        elif row := re.match(r"\| `(\w+)` \| \S", line):
            mapped.append(f"{folder}.{row[1]}".lstrip("."))
    assert sorted(mapped) == sorted(name for name in modules() if name not in packages())


@pytest.mark.parametrize("room", ["protocol", "machine", "policy", "errors"])
def test_pure_rooms_know_no_clock_no_io_and_no_chance(room: str) -> None:
    wrong = [
        f"{module} imports {one.name}"
        for module, imports in modules().items()
        if module == room or module.startswith(f"{room}.")
        for one in imports
        if not one.ours and one.name.partition(".")[0] in IMPURE
    ]
    assert not wrong


_IMPORT: Final = "import sys, mcp_tasks_client"

_BY_URL: Final = """
import sys
import anyio
from mcp_types import ElicitResult
from mcp_tasks_client import MemoryJournal, TasksClient

async def answer(context, params):
    return ElicitResult(action="accept", content={"name": "Ada"})

async def main():
    async with TasksClient(sys.argv[1], journal=MemoryJournal(), elicitation=answer) as client:
        assert not (await client.call_tool("ask_name")).is_error

anyio.run(main)
"""

_DROPPED_IN: Final = """
import sys
import anyio, mcp
from mcp_types import ElicitResult
from mcp_tasks_client import MemoryJournal, TasksExtension

async def answer(context, params):
    return ElicitResult(action="accept", content={"name": "Ada"})

async def main():
    extension = TasksExtension(journal=MemoryJournal())
    async with mcp.Client(sys.argv[1], extensions=[extension], elicitation_callback=answer) as client:
        assert not (await client.call_tool("ask_name", {})).is_error

anyio.run(main)
"""


@pytest.mark.parametrize("program", [_IMPORT, _BY_URL, _DROPPED_IN], ids=["import", "by URL", "dropped in"])
def test_a_client_at_a_server_of_2026_07_28_loads_none_of_the_older_generation(
    program: str, real_server: RealServer
) -> None:
    program += f"\nprint([name for name in sys.modules if {OLDER!r} in name])"
    ran = subprocess.run(
        [sys.executable, "-c", program, real_server.url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.strip() == "[]"
