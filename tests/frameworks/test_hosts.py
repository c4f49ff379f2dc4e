"""The recipes: two of them at real servers if the tests run whole, all of them with ``--long``."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from tests._legacy_installs import NotInstalled
from tests.docs.pages import PORT
from tests.legacy_servers import LegacyServer
from tests.real_server import RealServer

from .cells import (
    AFTER_KILL_S,
    CASES,
    GENERATIONS,
    CellServer,
    Failed,
    killed_with_a_task,
    output_of,
    run_cell,
)
from .page import CELLS, INDEX, LINES, between, lines_table, row, write
from .recipes import ROOT, Recipe, installed, recipes

RECIPES: Final = recipes()
LIMIT_S: Final = 180.0
QUICK: Final = {
    ("pydantic_ai", "2026-07-28", "question"),
    ("langchain_mcp_adapters", "2025-11-25", "question"),
}
"""Cells of the two that install fastest, one on mcp 2.x and one on mcp 1.x, and that soon end."""

HEAD: Final = """\
# /// script
# requires-python = ">=3.11"
# dependencies = ["agents==1.2"]
#
# [tool.recipe]
# longer-than-s = 7
# line = "Server(http_client=tasks_http_client())"
# setting = "none"
# ///
"""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_brings_its_result_home(
    recipe: Recipe, generation: str, case: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if (recipe.name, generation, case) not in QUICK and not request.config.getoption("--long"):
        pytest.skip("takes an environment of its own, or long; --long runs it")
    python = environment(recipe, request)
    fixture = "real_server" if generation == GENERATIONS[0] else "legacy_python_server"
    running: RealServer | LegacyServer = request.getfixturevalue(fixture)
    try:
        run_cell(recipe, python, CellServer(generation, running), case, tmp_path)
    except Failed as why:
        pytest.fail(str(why), pytrace=False)


def test_a_question_becomes_an_interrupt_of_langgraph(
    request: pytest.FixtureRequest, real_server: RealServer, tmp_path: Path
) -> None:
    [recipe] = [one for one in RECIPES if one.name == "langchain_mcp"]
    python = environment(recipe, request)
    interrupts = replace(recipe, program=recipe.program.with_name("langchain_mcp_interrupts.py"))
    run_cell(interrupts, python, CellServer(GENERATIONS[0], real_server), "question", tmp_path)


@pytest.mark.parametrize(
    "recipe", [one for one in RECIPES if one.restart.exists()], ids=lambda recipe: recipe.name
)
def test_an_agent_that_was_killed_in_a_tool_call_goes_on_with_its_task(
    recipe: Recipe, request: pytest.FixtureRequest, real_server: RealServer, tmp_path: Path
) -> None:
    """The second ``tools/call`` has the key of the first one, and so it joins the task."""
    python, server = environment(recipe, request), CellServer(GENERATIONS[0], real_server)
    before = len(server.methods())
    tool, arguments = server.call("kill", AFTER_KILL_S)
    command = [str(python), str(recipe.restart), real_server.url, tool, json.dumps(arguments)]
    killed_with_a_task(command, tmp_path)
    assert output_of(command, tmp_path, LIMIT_S).splitlines()[-1] == "rested"
    assert server.methods()[before:].count("tools/call") == 1


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_command_of_the_page_runs_at_the_server_of_the_tutorial(
    recipe: Recipe, request: pytest.FixtureRequest, docs_server: str, tmp_path: Path
) -> None:
    page = INDEX.read_text(encoding="utf-8").replace("openai_agents_host", recipe.program.stem)
    (line,) = re.findall(rf"^\$ python (examples/hosts/{recipe.program.name} .*)$", page, flags=re.MULTILINE)
    program, url, *arguments = shlex.split(line)
    command = [environment(recipe, request), ROOT / program, url.replace(PORT, docs_server), *arguments]
    said = output_of([str(one) for one in command], tmp_path, LIMIT_S)
    assert said.splitlines()[-1].strip() == "web 1.2 is deployed"


@pytest.mark.parametrize("tool", ["fail_rpc", "fail_tool"])
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_whose_call_fails_ends_with_an_error(
    recipe: Recipe, tool: str, request: pytest.FixtureRequest, real_server: RealServer, tmp_path: Path
) -> None:
    if tool == "fail_tool" and recipe.name in {"crewai", "openai_agents", "smolagents"}:
        pytest.skip("the framework hands on the text of a result, and not that it is an error")
    if tool == "fail_rpc" and not request.config.getoption("--long"):
        pytest.skip("ends as a failed tool does, by another error of the same client; --long runs it")
    python = environment(recipe, request)
    with pytest.raises(Failed, match="it ended with 1"):
        output_of([str(python), str(recipe.program), real_server.url, tool, "{}"], tmp_path, LIMIT_S)


def environment(recipe: Recipe, request: pytest.FixtureRequest) -> Path:
    """The interpreter of a recipe, where it is one of the quick ones or all are to run."""
    if recipe.name not in {name for name, *_ in QUICK} and not request.config.getoption("--long"):
        pytest.skip("takes an environment of its own; --long runs it")
    try:
        return installed(recipe)
    except NotInstalled as reason:
        pytest.skip(f"cannot be installed: {reason}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_is_short_pinned_and_has_a_page(recipe: Recipe) -> None:
    source = recipe.program.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 60
    assert ast.get_docstring(ast.parse(source))
    assert recipe.dependencies
    assert all("==" in one for one in recipe.dependencies)


def test_the_table_of_lines_is_that_of_the_recipes() -> None:
    assert between(INDEX.read_text(encoding="utf-8"), LINES) == lines_table(RECIPES)


def test_a_head_is_read_and_one_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "agents_host.py"
    program.write_text(HEAD)
    recipe = Recipe.read(program)
    assert (recipe.name, recipe.longer_than_s, recipe.setting) == ("agents", 7, "none")
    assert recipe.dependencies == ("agents==1.2",)

    program.write_text(HEAD.replace("# setting", "# other"))
    with pytest.raises(ValueError, match="'setting'"):
        Recipe.read(program)
    program.write_text("print()\n")
    with pytest.raises(ValueError, match="no PEP 723 block"):
        Recipe.read(program)


@dataclass(frozen=True)
class Nobody:
    """A server that has seen what it is told."""

    seen: list[str]
    url: str = "http://127.0.0.1:9/mcp"

    def witness(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(method=method) for method in self.seen]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('rested'); raise SystemExit('no such tool')", "it ended with 1:.*no such tool"),
        ("print('tired')", "it should print 'rested':.*tired"),
        ("print('rested')", "the server has seen tools/call 0 times"),
    ],
)
def test_a_cell_that_fails_says_why(code: str, why: str, tmp_path: Path) -> None:
    program = tmp_path / "agents_host.py"
    program.write_text(HEAD + code)
    server = CellServer(GENERATIONS[0], Nobody([]))
    with pytest.raises(Failed, match=f"(?s){why}"):
        run_cell(Recipe.read(program), Path(sys.executable), server, "longer", tmp_path)


def test_a_run_of_one_recipe_leaves_the_rows_of_the_others(tmp_path: Path) -> None:
    programs = [tmp_path / "one_host.py", tmp_path / "two_host.py"]
    for program in programs:
        program.write_text(HEAD)
    one, two = map(Recipe.read, programs)
    page = tmp_path / "index.md"
    page.write_text(
        f"<!-- {LINES} --><!-- end of {LINES} -->\n\nText.\n\n<!-- {CELLS} --><!-- end of {CELLS} -->\n"
    )
    first = row(one, {(GENERATIONS[0], "longer"): "7 s"}, "agents 1.2", "2026-01-01")
    write([one, two], {one.title: first}, page)
    second = row(two, {}, "agents 1.2", "2026-01-02")
    write([one, two], {two.title: second}, page)
    assert between(page.read_text(), CELLS).splitlines()[2:] == [first, second]
    write([two], {}, page)
    assert between(page.read_text(), CELLS).splitlines()[2:] == [second]
    assert "\n\nText.\n\n" in page.read_text()
