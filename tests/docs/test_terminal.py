"""The guide of the command: its exit codes, its JSON fields and its lines are those of the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.cli.program import _take_command_out, app
from tests.kit.terminal import Ran, run_command

from .pages import PAGES, ROOT

GUIDE: Final = (ROOT / "docs" / "guides" / "terminal.md").read_text(encoding="utf-8")


def rows(header: str) -> Iterator[tuple[str, ...]]:
    """The rows of the table of the guide that begins with this row."""
    table = GUIDE.partition(f"\n{header}\n")[2].partition("\n\n")[0]
    assert table, header
    for row in table.splitlines()[1:]:
        yield tuple(cell.strip() for cell in row.strip("|").split("|"))


def named(cell: str) -> set[str]:
    """The names in a cell."""
    return set(re.findall(r"`(\w+)`", cell))


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    told = {int(code): name for code, name, _ in rows("| code | name | the command ended because |")}
    assert told == {one.value: f"`{one.name.lower()}`" for one in Exit}


def test_every_verb_is_in_the_list() -> None:
    told = {name for cells in rows("| verb | |") for name in re.findall(r"`(\w+)", cells[0])}
    assert told == set(_commands())


def test_the_fields_of_every_document_are_those_of_the_guide(docs_server: str, tmp_path: Path) -> None:
    url, journal = f"{docs_server}mcp", tmp_path / "journal.sqlite3"
    documents = dict(rows("| document of | fields |"))
    call = {name for cells in rows("| field of a call | |") for name in named(cells[0])}
    question = {name for cells in rows("| field of a question | |") for name in named(cells[0])}
    checked = set()

    def check(what: str, document: Any, more: frozenset[str] | set[str] = frozenset()) -> None:
        assert set(document) == named(documents[what]) - {"null"} | more, what
        checked.add(what)

    def run(*arguments: str) -> Ran:
        return run_command(journal, *arguments, "--json")

    check("`call`, `wait` of one call, `cancel --wait`", run("call", url, "build", "service=web").document)
    asked = run("call", url, "deploy", "service=web", "--key", "k")
    assert (
        set(asked.error) == {"code", "message", "record", "next"} == named(documents["an error"]) - {"error"}
    )
    (seen,) = run("ls").document
    assert set(seen) == call
    (waits,) = run("questions").document
    assert set(waits) == question
    assert set(seen["questions"][0]) == question
    check("`show`", run("show", seen["record"]).document, call)
    check("`answer`", run("answer", waits["question"], "version=1.2").document)
    for line in run("drive", url, "--once").out.splitlines():
        check("`drive`", Ran(0, line, "").document)
    left = run("call", url, "deploy", "service=api", "--detach")
    check("`call --detach`", left.document)
    check("`cancel`", run("cancel", left.document["record"]).document)
    both = run("wait", seen["record"], left.document["record"]).document
    assert [set(one) for one in both] <= [{"record", "result"}, {"record", "error"}]
    assert named(documents["`wait` of several calls"]) == {"record", "result", "error"}
    check("`prune`", run("prune").document)
    check("`doctor`", run("doctor").document)
    assert set(documents) - checked == {
        "`wait` of several calls",  # checked above
        "`ls`",
        "`questions`",
        "an error",
        "`login`",  # tests/cli/test_login.py
        "`logout`",  # likewise
        "`ls --watch`",  # tests/cli/test_ls_watch.py
        "`tools`",  # the server's own
    }


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def lines() -> Iterator[tuple[str, str]]:
    """Each line of the command that a page shows, and the page."""
    for page in PAGES:
        blocks = re.findall(r"^```.*?\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        for block in blocks:
            for line in re.findall(r"(?:^|[$ (/])mcp-tasks ((?!has |is )[a-z].*)$", block, re.MULTILINE):
                yield page.name, line


@pytest.mark.parametrize(("page", "line"), sorted({*lines()}))
def test_a_line_of_a_page_is_one_that_the_program_takes(page: str, line: str) -> None:
    words = shlex.split(
        re.split(r" [|;&<>] | \d?>|\) ", line.replace("$(date +\\%F)", "today"))[0], comments=True
    )
    verb, *arguments = _take_command_out([word.rstrip(")") for word in words])
    _commands()[verb].make_context(verb, arguments)
