"""Who imports whom, read from the source: one way, and nothing impure in the pure rooms."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

spec = find_spec("mcp_tasks_client")
assert spec is not None
assert spec.origin is not None
PACKAGE: Final = Path(spec.origin).parent

ORDER: Final = (
    "errors",
    "wire",
    "params",
    "policy",
    "states",
    "events",
    "questions",
    "pace",
    "rounds",
    "outcomes",
    "machine",
    "clock",
    "signals",
    "journal",
    "journal.base",
    "journal.failures",
    "sessions",
    "sessions.base",
    "journal.row",
    "journal.memory",
    "journal.sqlite_log",
    "journal.sqlite_file",
    "journal.sqlite_thread",
    "journal.sqlite",
    "sessions.endpoints",
    "sessions.hosts",
    "sessions.transport",
    "sessions.over_httpx",
    "sessions.over_aiohttp",
    "sessions.faults",
    "sessions.bodies",
    "sessions.headers",
    "sessions.replies",
    "sessions.catalogue",
    "sessions.channel",
    "sessions.event_stream",
    "sessions.limits",
    "sessions.listening",
    "sessions.http",
    "schema",
    "results",
    "inputs",
    "owners",
    "points",
    "membership",
    "sessions.shapes_2025_11_25",
    "demands",
    "received",
    "custody",
    "sessions.peer",
    "sessions.saying",
    "asking",
    "serving",
    "parties",
    "telling",
    "sweeper",
    "receiver",
    "sessions.plain",
    "sessions.said",
    "sessions.asked",
    "sessions.http_peer",
    "sessions.listing",
    "sessions.progress",
    "sessions.switchboard",
    "sessions.known_ids",
    "sessions.retrieval",
    "sessions.pauses",
    "sessions.failures",
    "sessions.retrievals",
    "sessions.background",
    "sessions.server_streams",
    "sessions.hints",
    "sessions.resting",
    "sessions.hearing",
    "sessions.peers",
    "sessions.answering",
    "sessions.task_wish",
    "sessions.tasks_2025_11_25",
    "sessions.generations",
    "sessions.lines",
    "sessions.host_peer",
    "sessions.host_tasks",
    "sessions.messages",
    "sessions.sdk_words",
    "sessions.relay",
    "sessions.relay_session",
    "sessions.sdk_requests",
    "sessions.sdk_line",
    "sessions.sdk",
    "sessions.host_session",
    "sessions.sdk_1_requests",
    "sessions.sdk_1",
    "prompts",
    "drive",
    "commits",
    "driver",
    "listener",
    "hearsay",
    "calls",
    "cancels",
    "line",
    "turns",
    "afterwards",
    "performer",
    "scheduler",
    "upkeep",
    "handle",
    "idempotency",
    "recovery",
    "engine",
    "extension",
    "over_sdk_1",
    "transport",
    "client",
    "blocking",
    "testing.clock",
    "testing.probes",
    "testing.snapshots",
    "testing.script",
    "testing.client",
    "testing.faults",
    "testing.steps",
    "testing.timeline",
    "testing.witness",
    "testing.notifying",
    "testing.headers",
    "testing.session",
    "testing.app",
    "testing.desk",
    "testing.server",
    "testing",
    "cli",
    "cli.__main__",
    "__main__",
    "__init__",
)
"""Every module, in an order in which each imports only earlier ones. A name may be reserved."""

PURE: Final = (
    "errors",
    "wire",
    "params",
    "policy",
    "states",
    "events",
    "questions",
    "pace",
    "rounds",
    "outcomes",
    "machine",
)

PURE_IMPORTS: Final = {
    "__future__": "no module at all",
    "base64": "a pure function of bytes",
    "collections.abc": "names of interfaces",
    "dataclasses": "plain data",
    "datetime": "reads times, and no clock",
    "hashlib": "a pure function of bytes",
    "json": "a pure function of text",
    "math": "pure functions of numbers",
    "mcp_types": "MCP's own shapes",
    "pydantic": "reads shapes",
    "pydantic.alias_generators": "names on the wire",
    "re": "pure functions of text",
    "typing": "names for the type checker",
}
"""All that a pure room may import from outside, and why that is no clock, I/O, chance or loop."""

IMPURE_BUILTINS: Final = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}

LATE: Final[dict[tuple[str, str], str]] = {}
"""Imports inside functions that may go against the order, as (importer, imported), and why."""

SDK_ADAPTERS: Final = {
    "sessions.sdk": "is the adapter to the SDK, and imported only by hosts that have it",
    "sessions.sdk_requests": "is part of that adapter",
    "sessions.sdk_line": "is the same for the generation before",
    "sessions.host_session": "chooses between the two",
    "sessions.sdk_1": "is the adapter to the SDK's 1.x, which speaks no later version",
    "over_sdk_1": "is for hosts that have that one",
    "transport": "is for hosts that have either",
    "extension": "is the SDK's own extension point, and imported only by hosts that have it",
}
"""The modules that may import mcp or fastmcp. None of them is imported before it is used."""


LAZY: Final = {
    "aiohttp": "for sessions of our own on asyncio",
    "asyncio": "an event loop brings it, ours or not",
    "fastmcp": "for hosts that have it",
    "httpx": "for sessions of our own, and to read a URL; can take as long as all of this package",
    "httpx_sse": "for sessions of our own",
    "jsonschema": "for forms and output schemas, which most calls have none of",
    "mcp": "for hosts that have it",
    "platformdirs": "for journals whose file nobody names",
    "psutil": "for tasks of other processes",
    "referencing": "for jsonschema",
    "sqlite3": "for journals in a file",
}
"""What importing the package does not import, and what it is needed for later."""


@dataclass(frozen=True, slots=True)
class Import:
    """One module that is imported at run time."""

    by: str
    module: str
    line: int
    ours: bool
    late: bool

    def __str__(self) -> str:
        return f"{self.by} imports {self.module} (line {self.line})"


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name below it; a package by its folder's."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports(name: str, tree: ast.Module) -> Iterator[Import]:
    """What a module imports at run time, wherever in it that is written."""
    yield from _imports(name, tree, late=False)


def _imports(by: str, node: ast.AST, *, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for other in child.orelse:
                    yield from _imports(by, ast.Module([other], []), late=late)
            case ast.Import():
                for alias in child.names:
                    yield from _named(by, alias.name, child.lineno, late)
            case ast.ImportFrom():
                yield from _imported_from(by, child, late)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from _imports(by, child, late=True)
            case _:
                yield from _imports(by, child, late=late)


def _imported_from(by: str, node: ast.ImportFrom, late: bool) -> Iterator[Import]:
    if not node.level:
        assert node.module is not None
        yield from _named(by, node.module, node.lineno, late)
        return
    here = [*by.split(".")] if _is_package(by) else by.split(".")[:-1]
    base = here[: len(here) - node.level + 1] + (node.module.split(".") if node.module else [])
    for alias in node.names:
        # ``from .journal import base`` imports a module, ``from .journal.base import Journal`` a name.
        below = ".".join([*base, alias.name])
        yield Import(by, below if _exists(below) else ".".join(base) or "__init__", node.lineno, True, late)


def _named(by: str, module: str, line: int, late: bool) -> Iterator[Import]:
    root, _, below = module.partition(".")
    ours = root == PACKAGE.name
    yield Import(by, (below or "__init__") if ours else module, line, ours, late)


def _is_package(name: str) -> bool:
    return name != "__init__" and PACKAGE.joinpath(*name.split(".")).is_dir()


def _exists(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def every_import() -> list[Import]:
    return [one for name, tree in modules().items() for one in imports(name, tree)]


def test_every_module_has_a_place_in_the_order() -> None:
    assert len(set(ORDER)) == len(ORDER)
    unknown = sorted(set(modules()) - set(ORDER))
    assert not unknown, f"add {unknown} to ORDER in {Path(__file__).name}, after all that they import"


def test_the_pure_rooms_stand_before_all_others() -> None:
    assert ORDER[: len(PURE)] == PURE
    assert set(PURE) <= set(modules())


def test_imports_point_one_way() -> None:
    place = {name: index for index, name in enumerate(ORDER)}
    astray = [
        str(one)
        for one in every_import()
        if one.ours
        and not place.get(one.module, -1) < place.get(one.by, -1)
        and not (one.late and (one.by, one.module) in LATE)
    ]
    assert not astray


def test_the_pure_rooms_import_no_clock_no_io_no_chance_and_no_loop() -> None:
    impure = [
        str(one)
        for one in every_import()
        if one.by in PURE and (one.module not in PURE if one.ours else one.module not in PURE_IMPORTS)
    ]
    assert not impure


def test_the_pure_rooms_touch_nothing_by_a_builtin_either() -> None:
    trees = modules()
    used = [
        f"{name} uses {node.id} (line {node.lineno})"
        for name in PURE
        for node in ast.walk(trees[name])
        if isinstance(node, ast.Name) and node.id in IMPURE_BUILTINS
    ]
    assert not used


def test_only_the_adapters_import_the_sdk_and_nobody_imports_those_before_they_are_used() -> None:
    found = every_import()
    sdk = [
        str(one)
        for one in found
        if not one.ours and one.module.split(".")[0] in {"mcp", "fastmcp"} and one.by not in SDK_ADAPTERS
    ]
    eager = [
        str(one)
        for one in found
        if one.ours and one.module in SDK_ADAPTERS and not one.late and one.by not in SDK_ADAPTERS
    ]
    assert not sdk
    assert not eager


@pytest.mark.parametrize("module", ["mcp_tasks_client", "mcp_tasks_client.old.testing"])
def test_importing_the_package_imports_neither_sdk_nor_a_server(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = set(_output(program).split())
    assert "mcp_tasks_client" in loaded
    assert not loaded & {"mcp", "fastmcp", "starlette", "uvicorn"}


def test_importing_the_package_imports_nothing_that_only_some_hosts_need_or_only_later() -> None:
    # What our dependencies may import along is theirs.
    program = f"""
import sys, anyio.from_thread, mcp_types, pydantic, tenacity
before = set(sys.modules)
import {PACKAGE.name}
print(*sorted(set(sys.modules) - before))
"""
    loaded = set(_output(program).split())
    assert PACKAGE.name in loaded
    assert not {name: why for name, why in LAZY.items() if name in loaded}


def test_importing_the_package_does_not_build_the_reader_of_states() -> None:
    program = f"from {PACKAGE.name}.journal import base; print(base._states.cache_info().currsize)"
    assert _output(program) == "0\n"


def test_everything_that_is_imported_late_is_needed_by_somebody() -> None:
    used = {one.module.partition(".")[0] for one in every_import() if not one.ours}
    typed_only = {"fastmcp"}  # its clients are recognised by their names
    assert set(LAZY) - used == typed_only


def _output(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


# ── the reader itself ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("by", "source", "expected"),
    [
        ("driver", "from .machine import advance", ["machine"]),
        ("driver", "from . import machine, wire", ["machine", "wire"]),
        ("driver", "from . import PollPolicy", ["__init__"]),
        ("driver", "import mcp_tasks_client.old.wire as w", ["wire"]),
        ("driver", "from mcp_tasks_client.old.wire import Task", ["wire"]),
        ("driver", "import mcp_tasks_client", ["__init__"]),
        ("journal.base", "from ..wire import Task", ["wire"]),
        ("journal.base", "from .. import wire", ["wire"]),
        ("journal", "from .base import Journal", ["journal.base"]),
        ("journal", "from ..wire import Task", ["wire"]),
        ("client", "from .journal import base", ["journal.base"]),
        ("__init__", "from .wire import Task", ["wire"]),
        ("wire", "import os.path, json", ["os.path", "json"]),
        ("wire", "if TYPE_CHECKING:\n from .client import C\nelse:\n import time", ["time"]),
        ("wire", "if typing.TYPE_CHECKING:\n from .client import C", []),
        ("wire", "def f():\n async def g():\n  import time", ["time"]),
        ("wire", "class A:\n try:\n  import time\n except ImportError:\n  import os", ["time", "os"]),
    ],
)
def test_an_import_is_found_in_whatever_way_it_is_written(by: str, source: str, expected: list[str]) -> None:
    assert [one.module for one in imports(by, ast.parse(source))] == expected


def test_an_import_inside_a_function_is_known_as_late() -> None:
    source = "import time\ndef f():\n import os\nclass A:\n import re\n def g(self):\n  import json"
    late = {one.module: one.late for one in imports("wire", ast.parse(source))}
    assert late == {"time": False, "os": True, "re": False, "json": True}
