"""The README's examples, run as they stand; only the URL and the tool are the test server's."""

from __future__ import annotations

import re
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from mcp_types import ElicitResult

from .benchmarks.table import pasted
from .legacy_servers import LegacyServer
from .real_server import RealServer

pytestmark = pytest.mark.anyio

README: Final = Path(__file__).parent.parent / "README.md"
BLOCKS: Final = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
DROPPED_IN, WAITING, HANDLES, UNDER_A_SESSION, TESTING = BLOCKS
"""A block more, or less, is an error here."""


async def ask(context: object, params: object) -> ElicitResult:
    """The host's callback, in the blocks that take it for granted."""
    return ElicitResult(action="accept", content={"name": "Ada"})


async def run(source: str, names: dict[str, Any]) -> None:
    """Run a block that has ``await`` at its top level, and keep the names that it makes."""
    lines = source.splitlines()
    imports = "\n".join(line for line in lines if line.startswith(("from ", "import ")))
    body = "\n".join(line for line in lines if not line.startswith(("from ", "import ")))
    exec(imports, names)
    exec(f"async def example():\n{textwrap.indent(body, '    ')}\n    globals().update(locals())", names)
    with anyio.fail_after(30):
        await names["example"]()


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's own journal would be."""
    monkeypatch.setattr("platformdirs.user_state_path", lambda *_, **options: tmp_path)
    return tmp_path / "journal.sqlite3"


def adapt(block: str, url: str, call: str = '"ask_name", {"seconds": 0.2}') -> str:
    """The block at the server of a test."""
    block = block.replace("http://127.0.0.1:8000/mcp", url)
    return block.replace('"deploy", {"service": "web"}', call)


async def test_call_tool_and_then_handles(
    real_server: RealServer, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    for block in (WAITING, HANDLES):
        await run(adapt(block, real_server.url), names)
        assert names["result"].content[0].text == "Hello, Ada"
    assert "ask_name asks: " in capsys.readouterr().out
    assert journal.exists()


async def test_dropped_into_the_sdks_client(real_server: RealServer, journal: Path) -> None:
    names: dict[str, Any] = {"ask": ask}
    await run(adapt(DROPPED_IN, real_server.url), names)
    assert names["result"].content[0].text == "Hello, Ada"
    assert names["results"] == []
    assert journal.exists()


async def test_under_a_session(
    legacy_python_server: LegacyServer, journal: Path, anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("on trio the SDK's own stream leaves generators of httpx2 unclosed, which warns")
    names: dict[str, Any] = {"ask": ask}
    await run(adapt(UNDER_A_SESSION, legacy_python_server.url, '"asks"'), names)
    assert names["result"].content[0].text == "Hello, Ada"
    assert journal.exists()


async def test_the_scripted_server() -> None:
    await run(TESTING, {"answer": ask})


def test_the_figures_have_a_place() -> None:
    document = README.read_text(encoding="utf-8")
    assert "the figures" in pasted(document, "the figures")


def test_every_campaign_is_named_with_a_command() -> None:
    table = README.read_text(encoding="utf-8").partition("| campaign |")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| ([a-z ]+) \|", table, flags=re.MULTILINE))
    rooms = {
        path.parent.name.replace("_", " ")
        for path in (README.parent / "tests/campaigns").glob("*/__init__.py")
    }
    assert named == rooms
    for module in re.findall(r"python -m ([\w.]+)", table):
        assert find_spec(f"{module}.__main__") is not None, module
    for folder in re.findall(r"pytest (?:--long )?(\S+)`", table):
        assert (README.parent / folder).is_dir(), folder


def test_every_public_error_is_in_the_error_table() -> None:
    from mcp_tasks_client import errors

    table = README.read_text(encoding="utf-8").partition("## Errors")[2].partition("## ")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
    assert named == set(errors.__all__) - {"TasksClientError", "TaskError"}
