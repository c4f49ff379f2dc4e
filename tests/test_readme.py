"""The README's examples, run as they stand; only the URL and the tool are the test server's."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp_types import ElicitResult

from mcp_tasks_client import SqliteJournal

from .legacy_servers import LegacyServer
from .real_server import RealServer

pytestmark = pytest.mark.anyio

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


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
    path = tmp_path / "journal.sqlite3"
    monkeypatch.setattr(
        "mcp_tasks_client.old.journal.sqlite.SqliteJournal.__init__",
        lambda self, _=None, real=SqliteJournal.__init__: real(self, path),
    )
    return path


def adapted(block: str, url: str) -> str:
    block = block.replace("http://127.0.0.1:8000/mcp", url)
    return block.replace('"deploy", {"service": "web"}', '"ask_name", {"seconds": 0.2}')


async def test_call_tool_and_then_handles(
    real_server: RealServer, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS[1:3]:
        await run(adapted(block, real_server.url), names)
        assert names["result"].content[0].text == "Hello, Ada"
    assert "ask_name asks: " in capsys.readouterr().out
    assert journal.exists()


async def test_dropped_into_the_sdks_client(real_server: RealServer, journal: Path) -> None:
    async def ask(context: object, params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    names: dict[str, Any] = {"ask": ask}
    await run(adapted(BLOCKS[0], real_server.url), names)
    assert names["result"].content[0].text == "Hello, Ada"
    assert names["results"] == []
    assert journal.exists()


async def test_under_a_session(
    legacy_python_server: LegacyServer, journal: Path, anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("on trio the SDK's own stream leaves generators of httpx2 unclosed, which warns")

    async def ask(context: object, params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    names: dict[str, Any] = {"ask": ask}
    block = adapted(BLOCKS[3], legacy_python_server.url).replace('"ask_name", {"seconds": 0.2}', '"asks"')
    await run(block, names)
    assert names["result"].content[0].text == "Hello, Ada"
    assert journal.exists()


def test_policies(unused_url: str) -> None:
    from mcp_tasks_client import PollPolicy, TasksClient

    exec(BLOCKS[4], {"PollPolicy": PollPolicy, "TasksClient": TasksClient, "url": unused_url})


async def test_the_scripted_server() -> None:
    names: dict[str, Any] = {}
    for block in BLOCKS[5:7]:
        await run(block, names)


def test_every_public_error_is_in_the_error_table() -> None:
    from mcp_tasks_client import errors

    table = README.read_text(encoding="utf-8").partition("## Errors")[2].partition("## ")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
    assert named == set(errors.__all__) - {"TasksClientError", "TaskError"}
