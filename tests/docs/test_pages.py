"""Every Python block of the README and of the documentation, run as it stands at the tutorial's server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from mcp_tasks_client import errors

from ..fleet import sizing
from ..legacy_servers import LegacyServer
from .pages import PAGES, PORT, ROOT, blocks_of, has_blocks, has_empty_lines, paste, run_blocks

DOCS: Final = ROOT / "docs"
OLDER: Final = DOCS / "guides" / "servers-2025-11-25.md"
DATABASE: Final = "postgresql://tasks@db.example/tasks"
"""Where the pages have their database."""

LIMIT_S: Final = 60.0

WITH_CODE: Final = [page for page in PAGES if has_blocks(page)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory and a journal that are not the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("platformdirs.user_state_path", lambda *_, **options: tmp_path)


@pytest.mark.parametrize("page", [p for p in WITH_CODE if p != OLDER], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, docs_server: str, request: pytest.FixtureRequest) -> None:
    replacements = {PORT: docs_server}
    if DATABASE in page.read_text(encoding="utf-8"):
        replacements[DATABASE] = request.getfixturevalue("postgres")
    assert run_blocks(page, replacements)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_a_block_can_be_pasted_into_python_m_asyncio(page: Path) -> None:
    """But for what the site says beside: an empty line ends a class or a function there."""
    for block in blocks_of(page):
        if page != ROOT / "README.md" and has_empty_lines(block):
            continue
        assert paste(block) == [], block


def test_python_m_asyncio_runs_the_readme(docs_server: str, tmp_path: Path) -> None:
    """The console itself, of which the test above has the rules."""
    blocks = [block.replace(PORT, docs_server) for block in blocks_of(ROOT / "README.md")]
    typed = "\n\n".join([*blocks, "print('to the end')\n"])
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input=typed,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=LIMIT_S,
        check=True,
    )
    assert "Error" not in ran.stderr, ran.stderr
    assert "to the end" in ran.stdout


def test_the_blocks_run_at_a_server_of_2025_11_25(legacy_python_server: LegacyServer) -> None:
    at = legacy_python_server.url.removesuffix("mcp")
    assert run_blocks(OLDER, {PORT: at})


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("*.md")), ids=lambda page: page.stem)
def test_a_guide_opens_with_code_that_runs(page: Path) -> None:
    if page.stem != "index":
        language = {"terminal": "console", "bridge": "json", "bridge-hosts": "json"}.get(page.stem, "python")
        assert re.match(rf"# .*\n\n```{language}\n", page.read_text(encoding="utf-8"))


def test_every_guide_is_in_the_list_of_guides_and_in_that_of_the_readme() -> None:
    guides = {path.name for path in (DOCS / "guides").glob("*.md")} - {"index.md"}
    index = (DOCS / "guides" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- \[.+\]\((\S+\.md)\)\\\n  \S", index, re.MULTILINE)
    assert sorted(guides) == sorted(name for name in listed if "/" not in name)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not {name for name in guides if f"](docs/guides/{name})" not in readme}


def test_each_table_of_the_sizing_has_its_place() -> None:
    page = sizing.PAGE.read_text(encoding="utf-8")
    for name in sizing.PARTS:
        assert f"{name}: a table" in sizing.pasted(page, name, f"{name}: a table")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_links_to_the_code_that_only_the_site_shows(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for included in re.findall(r"{literalinclude} (\S+)", text):
        assert f"]({included})" in text, "a Git host shows an empty block"


def test_nobody_is_told_to_install_what_is_not_on_an_index() -> None:
    told = [*PAGES, *(ROOT / "examples").rglob("*.py"), *(ROOT / "mcp_tasks_client").rglob("*.py")]
    for path in told:
        assert not re.search(r"pip install [^\n`]*mcp-tasks-client", path.read_text(encoding="utf-8")), path


def test_every_campaign_is_named_with_a_command() -> None:
    page = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    table = page.partition("| campaign |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| ([a-z ]+) \|", table, flags=re.MULTILINE))
    rooms = {path.parent.name.replace("_", " ") for path in (ROOT / "tests/campaigns").glob("*/__init__.py")}
    assert named == rooms
    for module in re.findall(r"python -m ([\w.]+)", page):
        assert find_spec(f"{module}.__main__") is not None, module
    for folder in re.findall(r"pytest (?:--long )?(\S+)`", table):
        assert (ROOT / folder).is_dir(), folder


def test_every_public_error_has_its_cause_and_its_remedy() -> None:
    page = (DOCS / "errors.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(set(errors.__all__) - {"TasksClientError", "TaskError"})


def test_the_readme_fits_on_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 175
