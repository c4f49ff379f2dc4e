"""A server as a line may name it: a URL, a command behind ``--``, an ``mcp.json``; and its credential."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final

import anyio
import pytest

from mcp_tasks_client import SqliteJournal, TasksClient
from mcp_tasks_client.cli.exits import CommandError, Exit
from mcp_tasks_client.cli.journal import Where
from tests._forked import make_command
from tests.cli.test_drive import end, find_record, running
from tests.kit.command import until
from tests.kit.current_server import DISCOVERED, DONE, WORKING, CurrentServer, at_loopback
from tests.kit.piped_bridge import PipedBridge
from tests.kit.terminal import COMMAND, Ran, run_command, surroundings
from tests.legacy_servers import LegacyProgram

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

STRICT: Final = Path(__file__).parents[1] / "servers" / "strict_server.py"
INTRODUCED: Final = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({{"jsonrpc": "2.0", "id": asked["id"], "result": {}}}), flush=True)
"""
"""A server that answers each request by its introduction."""

SECRET: Final = "s3cr3t-of-ada"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


async def run(journal: Path, *arguments: str, **more: str) -> Ran:
    return await anyio.to_thread.run_sync(partial(run_command, journal, *arguments, **more))


# ── a command behind -- ───────────────────────────────────────────────────────────────────────────


def strict() -> list[str]:
    """The command of a real server over stdio."""
    return make_command(STRICT, "stdio")


async def test_a_tool_of_a_command_is_called_and_its_task_seen_through(journal: Path) -> None:
    ran = await run(journal, "call", "slow", "polls=2", "--json", "--", *strict())
    assert (ran.code, ran.err) == (0, "")
    assert ran.document["result"]["content"]
    assert (await run(journal, "ls", "--all", "--json")).document == []


async def test_the_same_line_with_a_key_has_the_outcome_of_the_first(journal: Path) -> None:
    line = ("call", "echo", "text=hi", "--key", "k", "--json", "--", *strict())
    first, second = await run(journal, *line), await run(journal, *line)
    assert first.document["record"] == second.document["record"]
    (seen,) = (await run(journal, "ls", "--all", "--json")).document
    assert seen["endpoint"].startswith("stdio:")


async def test_a_command_is_another_server_in_another_folder(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("call", "echo", "text=hi", "--key", "k", "--json", "--", *strict())
    records = []
    for folder in ("a", "b", "a"):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        records.append((await run(journal, *line)).document["record"])
    assert records[0] == records[2] != records[1]


@pytest.mark.parametrize("named", ["command", "file"])
async def test_a_bridge_introduces_the_server_of_its_own_folder(
    named: str, journal: Path, tmp_path: Path
) -> None:
    line = ("--", sys.executable, "server.py") if named == "command" else ("mcp.json:tool",)

    def is_introduced(folder: Path, name: str) -> bool:
        return introduced(folder) == name

    def introduced(folder: Path) -> str | None:
        command = [*COMMAND, "bridge", *line]
        process: Any = Popen(command, stdin=PIPE, stdout=PIPE, cwd=folder, env=surroundings(journal))
        bridge = PipedBridge(process, "2025-11-25", {}, "host")
        bridge.read_on()
        try:
            said: str | None = bridge.introduce().get("instructions")
            bridge.ask("tools/list")  # the server is there, and its words are kept
        finally:
            bridge.end()
        return said

    entry = {"command": sys.executable, "args": ["server.py"]}
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "server.py").write_text(INTRODUCED.format({**DISCOVERED, "instructions": name}))
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"tool": entry}}))
        first = await anyio.to_thread.run_sync(introduced, folder)
        assert first in (name, None), "a host does not wait long for a server that is new"
        await anyio.to_thread.run_sync(until, partial(is_introduced, folder, name))


async def test_tools_of_a_command_are_listed_with_a_line_that_calls_them(journal: Path) -> None:
    assert (await run(journal, "tools", "--", *strict())).out.startswith("echo text=<text>\n")
    one = await run(journal, "tools", "echo", "--", *strict())
    assert one.out.endswith("  mcp-tasks call echo text=TEXT -- COMMAND\n")


async def test_a_command_has_the_variables_of_the_shell(journal: Path) -> None:
    code = "import os, sys; sys.exit('seen ' + os.environ['MINE'])"
    ran = await run(journal, "call", "echo", "--", sys.executable, "-c", code, MINE="of the shell")
    assert "and said last: seen of the shell" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("call", "echo", "--"), "no command"),
        (("call", "echo", "--detach", "--", "server"), "--detach"),
        (("call", "echo", "--header", "A: b", "--", "server"), "Headers"),
    ],
    ids=["none", "detached", "headers"],
)
async def test_what_a_command_cannot_have_is_refused(
    arguments: Sequence[str], words: str, journal: Path
) -> None:
    ran = await run(journal, *arguments)
    assert ran.code == Exit.USAGE
    assert words in ran.err
    assert not journal.exists()


async def test_a_command_that_does_not_start_says_why_and_what_it_said_last(journal: Path) -> None:
    missing = await run(journal, "call", "echo", "--", "no-such-command")
    assert missing.code == Exit.UNREACHABLE
    assert "The server did not start: " in missing.err
    code = r"import sys; sys.exit('no \x1b[2J licence')"
    ended = await run(journal, "call", "echo", "--json", "--", sys.executable, "-c", code)
    assert ended.code == Exit.UNREACHABLE
    assert "exit code 1, and said last: no [2J licence. " in ended.error["message"]


async def test_a_command_needs_no_sdk(journal: Path) -> None:
    line = ["call", "echo", "text=hi", "--journal", str(journal), "--", *strict()]
    program = f"import sys; sys.modules['mcp'] = None; from mcp_tasks_client.cli import main; main({line!r})"
    ran = await anyio.run_process([sys.executable, "-c", program], check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


OLDER: Final = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        reply = {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no such method"}}
        if asked["method"] == "initialize":
            del reply["error"]
            server = {"name": "old", "version": "1"}
            reply["result"] = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": server}
        elif asked["method"] == "tools/call":
            del reply["error"]
            reply["result"] = {"content": [{"type": "text", "text": "old"}]}
        print(json.dumps(reply), flush=True)
"""


async def test_a_command_may_speak_an_older_version(journal: Path) -> None:
    ran = await run(journal, "call", "tool", "--", sys.executable, "-S", "-c", OLDER)
    assert (ran.code, ran.out, ran.err) == (0, "old\n", "")


async def test_the_task_of_a_command_of_an_older_version_is_seen_through(
    journal: Path, legacy_python_program: LegacyProgram
) -> None:
    ran = await run(journal, "call", "must", "n=3", "--json", "--", *legacy_python_program.stdio())
    assert (ran.code, ran.err) == (0, "")
    assert ran.document["result"]["structuredContent"] == {"n": 3}


# ── the task of a command ends with it ────────────────────────────────────────────────────────────


async def is_empty(journal: Path) -> bool:
    return bool((await run(journal, "ls", "--all", "--json")).document == [])


async def test_a_time_out_ends_the_task_and_leaves_nothing_in_the_journal(journal: Path) -> None:
    ran = await run(journal, "call", "endless", "--timeout", "8", "--json", "--", *strict())
    assert (ran.code, ran.error["next"]) == (Exit.TIMED_OUT, None)
    assert await is_empty(journal)


async def test_ctrl_c_ends_the_task_and_says_so(journal: Path) -> None:
    with running(journal, "call", "endless", "--", *strict()) as process:
        await find_record(journal)
        code, err = await end(process, signal.SIGINT)
    assert (code, err) == (130, "The task is cancelled, since its server ends now.\n")
    assert await is_empty(journal)


async def test_a_question_that_nobody_is_asked_ends_the_task(journal: Path) -> None:
    ran = await run(journal, "call", "ask", "--questions", "fail", "--", *strict())
    assert ran.code == Exit.QUESTION_WAITS
    assert "mcp-tasks answer" not in ran.err
    assert await is_empty(journal)


DIES: Final = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    reply = {"jsonrpc": "2.0", "id": asked["id"]}
    if asked["method"] == "server/discover":
        reply["result"] = DISCOVERED
    elif asked["method"] == "tools/list":
        reply["result"] = {"resultType": "complete", "tools": [], "ttlMs": 0, "cacheScope": "public"}
    elif asked["method"] == "tools/call":
        reply["result"] = WORKING
    else:
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(1)
    print(json.dumps(reply), flush=True)
"""


async def test_a_server_that_dies_takes_its_task_along(journal: Path, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    discovered = json.loads(json.dumps(CurrentServer().replies["server/discover"]))
    script.write_text(f"DISCOVERED = {discovered!r}\nWORKING = {WORKING!r}\n{DIES}")
    command = ("--", sys.executable, "-S", str(script))
    ran = await run(journal, "call", "tool", "--json", *command)
    assert (ran.code, ran.error["code"]) == (Exit.GONE, "gone")
    assert "out of memory" in ran.error["message"]
    assert (await run(journal, "wait", ran.error["record"])).code == Exit.USAGE, "a name is no address"
    script.write_text(
        script.read_text()
        .replace("os._exit(1)", "reply['error'] = GONE")
        .replace("import json", "GONE = {'code': -32602, 'message': 'Unknown task'}\nimport json", 1)
    )
    gone = await run(journal, "wait", ran.error["record"], *command)
    assert gone.code == Exit.GONE
    assert "died with the server's process" in gone.err


# ── an mcp.json that was named ────────────────────────────────────────────────────────────────────


def write(path: Path, key: str = "mcpServers", **servers: Any) -> Path:
    path.write_text(json.dumps({key: servers}))
    return path


@pytest.mark.parametrize("key", ["mcpServers", "servers"])
async def test_a_url_of_a_file_has_its_headers_filled_in(key: str, journal: Path, tmp_path: Path) -> None:
    heads: list[str] = []
    async with at_loopback(CurrentServer(), heads) as url:
        headers = {"Authorization": "Bearer ${TOKEN}", "X-Team": "${TEAM:-builds}", "X-Other": "file"}
        file = write(tmp_path / "mcp.json", key, one={"url": url.replace("127", "${N}"), "headers": headers})
        options = ("--header", "X-Other: line")
        ran = await run(journal, "call", f"{file}:one", "tool", *options, TOKEN=SECRET, N="127", TEAM="")
    assert (ran.code, ran.out, ran.err) == (0, "done\n", "")
    assert all(f"authorization: bearer {SECRET}" in head for head in heads)
    assert all("x-team: builds" in head for head in heads)
    assert all("x-other: line" in head for head in heads)


async def test_a_command_of_a_file_has_its_arguments_variables_and_folder(
    journal: Path, tmp_path: Path
) -> None:
    code = "import os, sys; sys.exit(repr((sys.argv[1:], os.environ['A'], 'B' in os.environ, os.getcwd())))"
    entry = {
        "command": "${PYTHON}",
        "args": ["-c", code, "${A:-x}", "$A"],
        "env": {"A": "${B}"},
        "cwd": str(tmp_path),
    }
    file = write(tmp_path / "mcp.json", one=entry)
    ran = await run(journal, "tools", f"{file}:one", PYTHON=sys.executable, B="b")
    assert ran.code == Exit.UNREACHABLE
    assert f"and said last: (['x', '$A'], 'b', False, '{tmp_path}')" in ran.err


async def test_a_real_server_of_a_file(journal: Path, tmp_path: Path) -> None:
    command, *arguments = strict()
    file = write(tmp_path / "mcp.json", one={"type": "stdio", "command": command, "args": arguments})
    ran = await run(journal, "call", f"{file}:one", "slow", "polls=1")
    assert ran.code == 0, ran


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("[]", "mcpServers"),
        ('{"mcpServers": []}', "mcpServers"),
        ('{"mcpServers": {"two": {"url": "http://127.0.0.1:9/"}}}', "It has: 'two'"),
        ('{"mcpServers": {"one": 7}}', "no server 'one'"),
        ('{"mcpServers": {"one": {}}}', "a url or a command"),
        ('{"mcpServers": {"one": {"url": "http://127.0.0.1:9/", "command": "x"}}}', "a url or a command"),
        ('{"mcpServers": {"one": {"url": "http://127.0.0.1:9/", "type": "sse"}}}', "SSE"),
        ('{"mcpServers": {"one": {"command": "x", "args": "y"}}}', "args of 'one'"),
        ('{"mcpServers": {"one": {"command": "x", "env": {"A": 1}}}}', "env of 'one'"),
        ('{"mcpServers": {"one": {"command": "x", "cwd": 1}}}', "cwd of 'one'"),
        ('{"mcpServers": {"one": {"url": "http://127.0.0.1:9/${NO_SUCH}"}}}', "'NO_SUCH' is not set"),
        ('{"mcpServers": {"one": {"url": "http://127.0.0.1:9/${env:HOME}"}}}', "'${env:HOME}'"),
    ],
)
async def test_a_file_that_does_not_name_a_server_says_why(
    content: str | None, words: str, journal: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    if content is not None:
        file.write_text(content)
    ran = await run(journal, "call", f"{file}:one", "tool", "--json")
    assert (ran.code, ran.error["code"]) == (Exit.USAGE, "usage")
    assert words in ran.error["message"]
    assert str(file) in ran.error["message"]


@pytest.mark.parametrize("given", ["localhost", "one", "ftp://127.0.0.1/", f"ws://ada:{SECRET}@127.0.0.1/"])
async def test_what_is_no_server_is_said_without_a_look_at_any_file(
    given: str, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".mcp.json", "mcp.json"):
        write(tmp_path / name, one={"url": "http://127.0.0.1:9/"}, localhost={"url": "http://127.0.0.1:9/"})
    ran = await run(journal, "call", given, "tool")
    assert ran.code == Exit.USAGE
    assert "FILE:NAME" in ran.err
    assert SECRET not in ran.err


# ── receipts name the way back, and no secret ─────────────────────────────────────────────────────


async def go_on(journal: Path, line: str, **more: str) -> Ran:
    """Run the line that a receipt names."""
    program, *words = shlex.split(line)
    assert program == "mcp-tasks"
    return await run(journal, *words, **more)


async def test_the_next_line_of_a_detached_call_reaches_the_server_with_the_same_credential(
    journal: Path, tmp_path: Path
) -> None:
    heads: list[str] = []
    server = CurrentServer()
    async with at_loopback(server, heads) as url:
        file = write(tmp_path / "mcp.json", one={"url": f"{url}?key=${{KEY}}"})
        variables = {"TOKEN": SECRET, "KEY": SECRET, "TEAM": SECRET}
        for named, options in (
            (url, ["--bearer-env", "TOKEN", "--header-env", "X-Team=TEAM"]),
            (f"{file}:one", ["--bearer-env", "TOKEN"]),
        ):
            heads.clear()
            detached = await run(journal, "call", named, "tool", "--detach", *options, **variables)
            assert detached.code == 0, detached
            line = detached.err.splitlines()[-1].strip()
            assert all(option in line for option in options)
            waited = await go_on(journal, line, **variables)
            assert (waited.code, waited.out) == (0, "done\n"), waited
            for ran in (detached, waited):
                assert SECRET not in ran.out + ran.err
            assert all(f"authorization: bearer {SECRET}" in head for head in heads)
            server.replies["tasks/get"] = DONE


@pytest.mark.parametrize("verb", ["call", "wait", "cancel", "drive", "tools"])
@pytest.mark.parametrize("as_json", [False, True])
async def test_no_secret_of_a_line_is_in_any_output(verb: str, as_json: bool, journal: Path) -> None:
    async with at_loopback(CurrentServer(gets=[WORKING])) as url:
        address = url.replace("//", f"//ada:{SECRET}@") + f"?key={SECRET}"
        async with TasksClient(address, journal=SqliteJournal(journal), application="mcp-tasks") as client:
            record_id = (await client.start_tool("tool")).reference["record_id"]
        arguments = {
            "call": ["call", address, "tool", "--timeout", "8"],
            "wait": ["wait", record_id, "--server", address, "--timeout", "1"],
            "cancel": ["cancel", record_id, "--server", address],
            "drive": ["drive", address],
            "tools": ["tools", address, "nothing"],
        }[verb]
        options = ["--header", f"X-Key: {SECRET}", "--bearer-env", "TOKEN", *(["--json"] if as_json else [])]
        with running(journal, *arguments, *options, TOKEN=SECRET) as process:
            if verb == "drive":
                assert process.stderr is not None
                assert process.stdout is not None
                stream = process.stdout if as_json else process.stderr
                said = await anyio.to_thread.run_sync(stream.readline)
                process.send_signal(signal.SIGTERM)
            else:
                said = ""
            out, err = await anyio.to_thread.run_sync(partial(process.communicate, timeout=60))
    said += out + err
    assert SECRET not in said
    assert "--bearer-env TOKEN" in said
    assert "--header 'X-Key: " in said


@pytest.mark.parametrize("value", [f"{SECRET}\nX-Other: 1", f"{SECRET}\x00", f"{SECRET} ü"])
async def test_a_value_that_no_header_may_have_is_refused_and_not_quoted(value: str, journal: Path) -> None:
    lines = [["--header", f"X-Key: {value}"]] if "\0" not in value else []
    variables = {} if "\0" in value else {"TOKEN": value}
    lines += [["--bearer-env", "TOKEN"], ["--header-env", "X-Key=TOKEN"]] if variables else []
    for options in lines:
        ran = await run(journal, "call", "http://127.0.0.1:9/mcp", "tool", *options, **variables)
        assert ran.code == Exit.USAGE
        assert SECRET not in ran.err


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://ada:pw@host/db", "user=ada password=… dbname=db host=host"),
        (
            "postgresql://ada:p%40w@host/db?sslpassword=pw",
            "user=ada password=… dbname=db host=host sslpassword=…",
        ),
        ("postgresql://ada:pw@host/d b", "…"),
        ("postgresql://ada@host/db", "postgresql://ada@host/db"),
        ("host=h password=pw dbname=d", "host=h password=… dbname=d"),
        ("host=h password='p w' dbname=d", "host=h password=… dbname=d"),
        ("host=h password='p\\'w' dbname=d", "host=h password=… dbname=d"),
        ("host=h password=p\\ w dbname=d", "host=h password=… dbname=d"),
        ("host=h sslpassword=pw dbname=d", "host=h sslpassword=… dbname=d"),
        ("host=h nonsense=pw dbname=d", "…"),
        ("postgresql+psycopg://ada:pw@host/db", "…"),
        ("POSTGRESQL://ada:pw@host/db", "…"),
        ("mysql://ada:pw@host/db", "…"),
        (" host=h password=pw", "host=h password=…"),
        ("host=h", "host=h"),
        ("/tmp/a:b@c.sqlite3", "/tmp/a:b@c.sqlite3"),
    ],
)
def test_a_line_names_a_database_without_its_password(
    address: str, shown: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.delenv("MCP_TASKS_JOURNAL", raising=False)
    *line, named = shlex.split(Where(address).line("ls"))
    assert line == ["mcp-tasks", "ls", "--journal"]
    assert sorted(named.split()) == sorted(shown.split()), "the order is that of libpq"
    if shown == "…":
        with pytest.raises(CommandError) as refused:
            Where(address).name_journal()
        assert refused.value.exit is Exit.USAGE
        assert "pw" not in str(refused.value)
