"""The site as Sphinx builds it: every public name is there, every link leads somewhere, no picture is old."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from sphinx.util.inventory import InventoryFile

import mcp_tasks_client
import mcp_tasks_client.forms
import mcp_tasks_client.progress
import mcp_tasks_client.testing

from ..benchmarks import charts
from .pages import ROOT

LIMIT_S: Final = 300.0
"""Seconds for what takes 30 on an idle machine, and minutes beside other test runs."""


_BUILD: Final = """
import gc, sys
gc.disable()  # a process that ends soon, and a quarter of its time
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_site_builds_with_every_public_name_and_loads_nothing_from_elsewhere(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("CI builds the site after the tests, as it checks the types; --long runs it")
    # Warnings are errors, and a link that leads nowhere is a warning.
    command = [sys.executable, "-c", _BUILD, "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert built.returncode == 0, built.stderr

    inventory = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="").data
    documented = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    for package in (
        mcp_tasks_client,
        mcp_tasks_client.forms,
        mcp_tasks_client.progress,
        mcp_tasks_client.testing,
    ):
        assert not {f"{package.__name__}.{name}" for name in package.__all__} - documented

    hosts = (tmp_path / "reference" / "hosts.html").read_text()
    assert "Needs the official MCP SDK" not in hosts, "a stub"

    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="([^"]+)"', page.read_text()
        )
        assert not [url for url in loaded if url.startswith(("http", "//"))], page


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_between_files_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)|(?:src|srcset)=\"([^\"]+)\"", text)
    for link in filter(None, (one for pair in links for one in pair)):
        assert link.startswith("https://") or (ROOT / link).exists(), link


def test_the_diagrams_are_those_of_their_sources(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "diagrams"
    # In a process of its own, since the renderer complains of what pytest keeps alive.
    subprocess.run([sys.executable, str(folder / "draw.py"), str(tmp_path)], timeout=LIMIT_S, check=True)
    drawn, committed = (
        {path.name: path.read_text() for path in at.glob("*.svg")} for at in (tmp_path, folder)
    )
    assert drawn == committed


@pytest.mark.skipif(sys.platform == "win32", reason="the recording has its terminals on POSIX alone")
def test_the_recording_shows_what_the_command_does(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "recordings"
    subprocess.run([sys.executable, str(folder / "record.py"), str(tmp_path)], timeout=LIMIT_S, check=True)
    for name in ("terminal-light.svg", "terminal-dark.svg"):
        shown = (folder / name).read_text(encoding="utf-8")
        # Not the drawing, which is another one under another version of rich.
        assert _lines_of(shown) == _lines_of((tmp_path / name).read_text(encoding="utf-8"))
        # Nothing is loaded from another host.
        assert not re.search(r"url\((?!#)|href=|@import", shown)


def _lines_of(svg: str) -> list[str]:
    """The lines of a terminal that rich has drawn."""
    lines: dict[float, str] = {}
    for text in ElementTree.fromstring(svg).iterfind(".//{*}g/{*}g/{*}text"):
        lines[float(text.attrib["y"])] = lines.get(float(text.attrib["y"]), "") + (text.text or "")
    assert len(lines) > 20, "no drawing"
    return [*lines.values()]


def test_the_charts_are_those_of_the_table() -> None:
    drawn = dict(charts.drawings(charts.PAGE.read_text(encoding="utf-8")))
    assert {path: path.read_text(encoding="utf-8") for path in drawn} == drawn
    assert set(drawn) == set(charts.FOLDER.glob("*.svg"))
