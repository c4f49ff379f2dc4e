"""The rules of the house, shown by walking the imports of every module.

Imports for type checkers and imports inside functions count too, unless a rule says otherwise.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import mcp_tasks_client

from .house_map import concepts
from .real_server import RealServer

ROOT: Final = Path(mcp_tasks_client.__file__).parent
PACKAGE: Final = "mcp_tasks_client"
OLDER: Final = "sessions.v2025"

FLOORS: Final = (
    ("policy", "estimate", "aio", "foreign_text", "protocol"),
    ("machine",),
    ("errors",),
    ("journal",),
    ("questions",),
    ("forms",),
    ("sessions",),
    ("engine",),
    ("handle",),
    ("progress",),
    ("hosts",),
    ("client", "inbox"),
    ("blocking", "testing"),
    ("bridge",),
    ("cli",),
    ("__main__",),
)
"""The rooms (folders and modules of the top level) from the bottom up. A room imports rooms of
lower floors, and the ones named before it on its own floor."""

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


@cache
def packages() -> set[str]:
    """The dotted names of the folders; the package's own is empty."""
    return {".".join(path.relative_to(ROOT).parts[:-1]) for path in ROOT.rglob("__init__.py")}


@cache
def _names() -> set[str]:
    return {p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for p in ROOT.rglob("*.py")}


def _imports(tree: ast.Module, module: str, *, is_package: bool):  # type: ignore[no-untyped-def]  # a generator of Import
    names = _names()

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


def room_of(module: str) -> str:
    return module.partition(".")[0]


def test_nothing_is_pickled_by_a_method_that_its_dataclass_replaces() -> None:
    """Before Python 3.11.4 a frozen dataclass with slots has its own ``__getstate__`` in its place."""
    for path in ROOT.rglob("*.py"):
        assert "def __getstate__" not in path.read_text(), path


def test_every_room_has_its_place() -> None:
    assert sorted(room for floor in FLOORS for room in floor) == sorted(
        {room_of(name) for name in modules() if name}
    )


def test_no_import_runs_back_up() -> None:
    place = {room: number for number, room in enumerate(room for floor in FLOORS for room in floor)}
    wrong = [
        f"{module} imports {one.name or PACKAGE}"
        for module, imports in modules().items()
        if module
        for one in imports
        if one.ours and not (one.name and place[room_of(one.name)] <= place[room_of(module)])
    ]
    assert not wrong


def test_the_command_and_the_bridge_use_public_modules_alone() -> None:
    """A verb that lacks something shows that every host lacks it. The command may enter the bridge."""
    public = {PACKAGE, *(f"{PACKAGE}.{name}" for name in ("estimate", "foreign_text", "forms", "progress"))}
    entered = {"cli": f"{PACKAGE}.bridge", "bridge": "nothing"}
    wrong = [
        f"{module} imports {one.name}"
        for module, imports in modules().items()
        if (room := room_of(module)) in entered
        for one in imports
        if (
            room_of(one.name) != room
            if one.ours
            else one.name.startswith(PACKAGE)
            and one.name not in public
            and not one.name.startswith(entered[room])
        )
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    _refuse_circles(
        {
            module: {one.name for one in imports if one.ours} - {module}
            for module, imports in modules().items()
        }
    )


def test_no_folders_import_each_other_in_a_circle() -> None:
    """A folder is not its subfolders: what all of them share stands in the folder itself."""
    folders: dict[str, set[str]] = {}
    for module, imports in modules().items():
        folder = _folder_of(module)
        folders.setdefault(folder, set()).update(_folder_of(one.name) for one in imports if one.ours)
    _refuse_circles({folder: found - {folder} for folder, found in folders.items() if folder})


def _folder_of(module: str) -> str:
    """The folder that a module stands in; a module of the top level stands for itself."""
    return module if module in packages() or "." not in module else module.rpartition(".")[0]


def _refuse_circles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_nothing_imports_the_older_generation_but_late_imports() -> None:
    importing = {
        (module, one.late)
        for module, imports in modules().items()
        # Both versions pass through a relay. Which one, it learns from the messages.
        if not module.startswith((OLDER, "hosts.relay"))
        for one in imports
        if one.ours and one.name.startswith(OLDER)
    }
    assert importing == {("sessions.by_command.discovery", True), ("sessions.by_url.discovery", True)}


def test_requests_that_are_no_polls_are_repeated_in_one_place() -> None:
    repeating = {name for name, imports in modules().items() for one in imports if one.name == "tenacity"}
    assert repeating == {"sessions.repetition"}


def test_the_relay_is_loaded_for_its_public_name_only() -> None:
    importing = {
        (module, one.for_types)
        for module, imports in modules().items()
        if not module.startswith("hosts.relay")
        for one in imports
        if one.ours and one.name.startswith("hosts.relay")
    }
    assert importing == {("", True)}, "the package names TasksTransport for type checkers, and loads it late"


def test_the_rest_does_not_speak_of_the_older_generation() -> None:
    speaking = {
        path.relative_to(ROOT).as_posix(): len(found)
        for path in ROOT.rglob("*.py")
        if not {"v2025", "relay", "bridge"} & {*path.relative_to(ROOT).parts}
        and (found := re.findall(r"2025.?11.?25", path.read_text()))
    }
    said = {"protocol/__init__.py": "its name", "client.py": "an option"}
    assert speaking.keys() == said.keys()


def test_the_map_in_contributing_names_each_room() -> None:
    text = (ROOT.parent / "CONTRIBUTING.md").read_text()
    rows = "".join(
        re.findall(r"^\| `.*$", text[text.index("## The map") : text.index("## How a call")], re.M)
    )
    rooms = {f"{room}/" if room in packages() else room for floor in FLOORS for room in floor}
    assert sorted(room for room in rooms if f"`{room}`" not in rows) == ["__main__"]


def test_contributing_names_files_and_members_that_there_are() -> None:
    """Each path, ``room/module.name`` and ``Class.member``; not the methods of MCP, such as ``tasks/get``."""
    repository = ROOT.parent
    text = (repository / "CONTRIBUTING.md").read_text()
    told = set(re.findall(r"`([^`\s]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))
    paths = {word for word in told if "/" in word and not word.startswith(("tools/", "tasks/"))}
    members = {word.partition("(")[0] for word in told if re.match(r"[A-Z]\w+\.(?!md$)[a-z_]\w+(\(|$)", word)}
    assert len(paths) > 50 < len(members)
    assert sorted(word for word in paths if not _is_there(word, repository)) == []
    assert sorted(word for word in members if not _is_member(word)) == []


def _is_there(word: str, repository: Path) -> bool:
    """True if a path leads from the repository, or from a room, to a file, or to a name in a module."""
    path, (module, _, name) = word.rstrip("/"), word.rpartition(".")
    if any((*repository.glob(path), *ROOT.rglob(path), *ROOT.rglob(f"{path}.py"))):
        return True
    return bool(module) and any(
        re.search(rf"\b{name}\b", one.read_text()) for one in ROOT.rglob(f"{module}.py")
    )


def _is_member(word: str) -> bool:
    """True if a class of the package has a member of that name, or its instances have an attribute."""
    name, _, member = word.partition(".")
    return any(re.search(rf"\b{member}\b", text) for text in _classes().get(name, ()))


@cache
def _classes() -> dict[str, list[str]]:
    """The text of each class of the package, by its name, which several may have."""
    found: dict[str, list[str]] = {}
    for path in ROOT.rglob("*.py"):
        for text in re.findall(r"^class .*?(?=^\S|\Z)", path.read_text(), flags=re.M | re.S):
            found.setdefault(re.split(r"\W", text.removeprefix("class "), maxsplit=1)[0], []).append(text)
    return found


def test_each_module_says_its_concept_in_its_first_sentence() -> None:
    assert {name for name, concept in concepts().items() if not concept.endswith((".", ":"))} == set()


STORE: Final = {f"engine.{name}" for name in ("owning", "steps", "ends")}

WRITERS: Final[dict[str, tuple[frozenset[str], set[str]]]] = {
    "entry": (
        frozenset(
            {
                "due_is_exact",
                "instructed",
                "journaled",
                "next_send",
                "ownership",
                "record",
                "tool_call",
                "uncommitted",
            }
        ),
        STORE,
    ),
    "audience": (
        frozenset({"in_background", "limits", "listeners", "poll_failed", "polls", "told", "waiters"}),
        {"engine.live_call", "engine.runner"},
    ),
    "drive": (
        frozenset({"asks", "attempt", "drive", "due", "error", "followed", "open_prompts", "scope"}),
        {"engine.live_call", "engine.runner", "engine.prompts"},
    ),
}
"""The fields of a live call by their owner, and the modules that write them."""


@pytest.mark.parametrize("owner", WRITERS)
def test_each_field_of_a_call_is_written_by_the_room_of_its_owner(owner: str) -> None:
    fields, writers = WRITERS[owner]
    wrong = [
        f"{module} writes {ast.unparse(target)}"
        for module in modules()
        if module.startswith(("engine.", "hosts.")) or "." not in module
        if module not in writers
        for target in _written(module)
        if target.attr in fields and _is_call(target.value)
    ]
    assert not wrong


def _written(module: str) -> Iterator[ast.Attribute]:
    """The attributes that a module assigns."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    if not path.exists():
        return  # a folder
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) else []:
            for part in ast.walk(target) if target is not None else []:
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    yield part


def _is_call(value: ast.expr) -> bool:
    """Whether an expression is a live call, its audience or its drive, by the names that these have."""
    named = ast.unparse(value)
    return named in ("call", "live", "drive") or named.endswith(
        (".call", "_call", ".drive", "_drive", ".audience")
    )


@pytest.mark.parametrize(
    "room", ["protocol", "machine", "policy", "estimate", "errors", "questions.kinds", "forms"]
)
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
