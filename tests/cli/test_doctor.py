"""A doctor for journals, calls and servers, who changes nothing of what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any, Final

import psycopg
import pytest

from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.machine.states import Calling
from mcp_tasks_client.testing.samples import finished, observing, record
from tests.kit.command import Command, asking, form, until
from tests.real_server import RealServer

NOW: Final = time()


def faults(document: dict[str, Any], about: str) -> list[str]:
    return [one["message"] for one in document["findings"] if one["about"] == about and one["fault"]]


def read(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


# ── journals that are well ────────────────────────────────────────────────────────────────────────


def test_of_a_healthy_journal_it_tells_where_it_is_and_what_is_in_it(command: Command) -> None:
    at = time()
    command.write(
        record(record_id="received", idempotency_key="a", state=finished(), delivered_at=at),
        record(record_id="not received", state=finished()),
        asking(form()),
    )
    ran = command("doctor", "--json")
    assert (ran.code, ran.err) == (0, "")
    document = ran.document
    assert sorted(document) == ["findings", "healthy", "journal", "server"]
    assert (document["healthy"], document["server"]) == (True, None)
    journal = document["journal"]
    is_file = isinstance(command.journal, Path)
    assert journal.pop("database").startswith("SQLite 3." if is_file else "PostgreSQL ")
    name, size, system = journal.pop("name"), journal.pop("size"), journal.pop("file_system")
    assert name == str(command.journal) if is_file else command.variables["MCP_TASKS_SCHEMA"] in name
    assert size > 4096
    assert (system is not None) == (is_file and sys.platform == "linux")
    assert isinstance(journal.pop("users"), list)
    assert journal == {
        "usable": True,
        "version": 1,
        "calls": {
            "all": 3,
            "unfinished": 1,
            "unknown": 0,
            "undriven": 0,
            "undelivered": 1,
            "questions": 1,
            "answer_until": None,
        },
    }
    first, second = document["findings"]
    assert first == {
        "about": "calls",
        "fault": False,
        "message": "1 outcome is received by no program yet. Its own program has it when it goes on. "
        "To see it:",
        "next": "mcp-tasks ls",
    }
    assert (second["about"], second["fault"], second["next"]) == ("calls", False, "mcp-tasks questions")
    told = command("doctor")
    assert told.code == 0
    assert told.out.endswith("\nNo fault was found.\n")


def test_a_call_that_needs_somebody_is_a_fault_and_says_what_to_do(command: Command) -> None:
    expires = {"ttl_ms": 3_600_000.0}
    command.write(
        record(record_id="calling", state=Calling(), idempotency_key="k"),
        record(record_id="working", state=observing(**expires)),
        record(record_id="older", state=observing("task-2")),
    )
    ran = command("doctor", "--json")
    assert (ran.code, ran.document["healthy"]) == (Exit.UNEXPECTED, False)
    calls = ran.document["journal"]["calls"]
    assert (calls["unknown"], calls["undriven"]) == (1, 2)
    unknown, undriven = ran.document["findings"]
    assert unknown["next"] == "mcp-tasks ls --state outcome_unknown"
    assert "may have run" in unknown["message"]
    assert sorted(undriven["next"].split()[2:]) == ["older", "working"]
    assert "driven by no living program" in undriven["message"]
    told = command("doctor")
    assert told.code == Exit.UNEXPECTED
    assert f"\nFAULT: {unknown['message']}\n  {unknown['next']}\n" in told.out
    assert told.out.endswith("\n2 faults.\n")


def test_it_names_the_processes_that_have_the_journal_open(real_server: RealServer, command: Command) -> None:
    with command.running("call", real_server.url, "ask_name", "--questions", "leave") as program:
        command.wait_for_question()

        def users() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = command("doctor", "--json").document["journal"]["users"]
            return found

        seen = until(users)
        if isinstance(command.journal, Path):
            assert {one["host"] for one in seen} == {None}
            assert len(seen) == 1
            assert f", process {seen[0]['pid']}\n" in command("doctor").out
        else:
            assert {one["program"] for one in seen} == {"mcp-tasks-client"}
        assert command("doctor").code == 0, "the call is driven"
        program.terminate()
        program.wait(30)


# ── journals that are not ─────────────────────────────────────────────────────────────────────────


def make_damaged(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xa5" * 4096 * 3)


def make_foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA journal_mode = WAL; CREATE TABLE notes (text)")


def make_newer(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(60)  # where SQLite keeps the user_version
        file.write((99).to_bytes(4, "big"))


def make_text(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)


def make_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def keep_log(path: Path) -> None:
    """Leave the file as a crash would, with its log beside it."""
    copy = beside(path, "-copied")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("INSERT INTO meta VALUES ('note', ?)", ("x" * 9000,))
        connection.commit()
        for suffix in ("", "-wal"):
            shutil.copy(beside(path, suffix), beside(copy, suffix))
    for suffix in ("", "-wal"):
        beside(copy, suffix).rename(beside(path, suffix))


@pytest.mark.parametrize(
    ("change", "words", "has_log"),
    [
        (make_damaged, "is damaged or no database at all", False),
        (make_damaged, "is damaged or no database at all", True),
        (make_foreign, "is another program's database", False),
        (make_newer, "was written by a newer version (schema 99, not 1) and was left as it is", False),
        (make_newer, "was written by a newer version (schema 99, not 1) and was left as it is", True),
        (make_text, "is damaged or no database at all", False),
        (make_short, "is damaged or no database at all", False),
    ],
)
def test_a_journal_that_cannot_be_used_is_told_and_stays_byte_for_byte(
    over_file: Command, change: Callable[[Path], None], words: str, has_log: bool
) -> None:
    path = over_file.journal
    assert isinstance(path, Path)
    over_file.write(*(record(record_id=f"{at}", label="x" * 4000) for at in range(20)))
    if has_log:
        keep_log(path)
    change(path)
    before = {suffix: read(beside(path, suffix)) for suffix in ("", "-wal", "-journal")}
    assert bool(before["-wal"]) == has_log
    ran = over_file("doctor", "--json")
    assert (ran.code, ran.err) == (Exit.UNEXPECTED, "")
    (fault,) = faults(ran.document, "journal")
    assert words in fault
    assert str(path) in fault
    assert ran.document["journal"]["usable"] is False
    assert ran.document["journal"]["calls"] is None
    assert f"\nFAULT: {fault}\n" in over_file("doctor").out
    assert {suffix: read(beside(path, suffix)) for suffix in before} == before


@contextmanager
def locked(path: Path, how: str) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if how == "wholly":
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


@pytest.mark.parametrize("how", ["for writing", "wholly"])
def test_a_journal_that_another_process_holds_is_told_and_stays_byte_for_byte(
    over_file: Command, how: str
) -> None:
    path = over_file.journal
    assert isinstance(path, Path)
    over_file.write(record(record_id="f00d", state=observing()))
    keep_log(path)
    before = {suffix: read(beside(path, suffix)) for suffix in ("", "-wal")}
    with locked(path, how):  # no file is read meanwhile: closing it would drop the lock
        ran = over_file("doctor", "--json")
        assert ran.code == Exit.UNEXPECTED
        (fault,) = faults(ran.document, "journal")
        assert "is held by another process" in fault
        assert {one["pid"] for one in ran.document["journal"]["users"]} == {os.getpid()}
        assert {suffix: read(beside(path, suffix)) for suffix in before} == before


def test_a_file_that_was_named_and_is_not_there_is_a_fault_and_is_not_made(over_file: Command) -> None:
    assert isinstance(over_file.journal, Path)
    ran = over_file("doctor", "--json")
    assert ran.code == Exit.UNEXPECTED
    (fault,) = faults(ran.document, "journal")
    assert fault.startswith("there is no journal at")
    assert not over_file.journal.exists()


def test_that_the_user_has_no_journal_yet_is_no_fault(tmp_path: Path) -> None:
    ran = Command("", XDG_STATE_HOME=str(tmp_path), HOME=str(tmp_path))("doctor", "--json")
    assert (ran.code, ran.document["healthy"]) == (0, True)
    (finding,) = ran.document["findings"]
    assert finding["message"].startswith("There is no journal yet. The first call makes it: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
def test_a_folder_that_everybody_can_write_to_is_a_fault(over_file: Command) -> None:
    assert isinstance(over_file.journal, Path)
    over_file.write(record())
    over_file.journal.parent.chmod(0o777)
    (fault,) = faults(over_file("doctor", "--json").document, "journal")
    assert f"every user of this machine can write to {over_file.journal.parent}" in fault


# ── PostgreSQL ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (None, "there is no journal"),
        ("CREATE TABLE {}.meta (note TEXT)", "holds another program's tables and was left as it is"),
        ("UPDATE {}.meta SET value = '99' WHERE name = 'version'", "was written by a newer version"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told(
    postgres: str, schema: str, statement: str | None, words: str
) -> None:
    command = Command(postgres, MCP_TASKS_SCHEMA=schema)
    if statement is not None and statement.startswith("UPDATE"):
        command.write(record())
    with psycopg.connect(postgres, autocommit=True) as connection:
        if statement is not None:
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"'.encode())
            connection.execute(statement.format(f'"{schema}"').encode())
    ran = command("doctor", "--json")
    assert ran.code == Exit.UNEXPECTED
    (fault,) = faults(ran.document, "journal")
    assert words in fault
    assert ran.document["journal"]["usable"] is False
    assert ran.document["journal"]["database"].startswith("PostgreSQL 1")


def test_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    command = Command(f"host={tmp_path} dbname=tasks", MCP_TASKS_SCHEMA="tasks")
    ran = command("doctor", "--json")
    assert ran.code == Exit.UNEXPECTED
    (fault,) = faults(ran.document, "journal")
    assert "cannot be reached" in fault
    assert ran.document["journal"]["version"] is None


# ── servers ───────────────────────────────────────────────────────────────────────────────────────


def test_a_server_is_told_with_its_version_its_tools_and_its_clock(
    real_server: RealServer, over_file: Command
) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    ran = over_file("doctor", real_server.url, "--json")
    assert (ran.code, ran.err) == (0, "")
    server = ran.document["server"]
    assert abs(server.pop("clock_ahead_s")) < 30
    assert server.pop("tools") > 10
    assert server == {
        "address": real_server.url,
        "reached": True,
        "version": "2026-07-28",
        "name": "real-tasks-server",
        "tasks": True,
        "credential": "not needed",
        "login": None,
    }
    told = over_file("doctor", real_server.url, "--header", "X-Team: builds").out
    assert "reached, real-tasks-server, MCP 2026-07-28, makes tasks, " in told
    assert ", credential accepted, clock " in told
    with_password = real_server.url.replace("://", "://ada:secret@")
    ran = over_file("doctor", with_password, "--json")
    assert ran.document["server"]["credential"] == "accepted"


def test_an_older_server_is_told_with_its_version(legacy_server: Any, over_file: Command) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    ran = over_file("doctor", legacy_server.url, "--json")
    assert ran.code == 0, ran
    server = ran.document["server"]
    assert (server["version"], server["tasks"], server["reached"]) == ("2025-11-25", True, True)


def test_a_server_that_is_not_there_is_a_fault(over_file: Command, unused_url: str) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    ran = over_file("doctor", unused_url, "--json")
    assert ran.code == Exit.UNEXPECTED
    assert ran.document["server"]["reached"] is False
    (fault,) = faults(ran.document, "server")
    assert "Check the URL and the network" in fault


def test_what_is_no_url_is_a_usage_error(over_file: Command) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    assert over_file("doctor", "ftp://mcp.example/").code == Exit.USAGE


class Skewed(BaseHTTPRequestHandler):
    """A server whose clock is wrong, for those who know its token."""

    def do_HEAD(self) -> None:  # the name that http.server looks for
        self._reply(HTTPStatus.METHOD_NOT_ALLOWED, b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != "Bearer s3cret":
            self._reply(HTTPStatus.UNAUTHORIZED, b"", ("WWW-Authenticate", 'Bearer error="invalid_token"'))
            return
        result: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        if asked["method"] == "server/discover":
            result |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        else:
            result |= {"tools": []}
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
        self._reply(HTTPStatus.OK, body, ("Content-Type", "application/json"))

    def _reply(self, status: HTTPStatus, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time() - 3 * 3600 - 30, usegmt=True)

    def log_message(self, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def skewed() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Skewed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()


def test_a_clock_that_is_wrong_is_a_fault_and_a_server_without_tasks_is_none(
    skewed: str, over_file: Command
) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    over_file.variables["TOKEN"] = "s3cret"
    ran = over_file("doctor", skewed, "--bearer-env", "TOKEN", "--json")
    assert ran.code == Exit.UNEXPECTED
    (fault,) = faults(ran.document, "server")
    assert fault.startswith("The clock of the server is 3h behind the clock of this machine")
    # A reply that takes long is half of it late, or early.
    assert -10_860 < ran.document["server"]["clock_ahead_s"] < -10_800
    assert ran.document["server"]["tasks"] is False
    (note,) = [one["message"] for one in ran.document["findings"] if not one["fault"]]
    assert note.startswith("The server makes no tasks")


def test_a_credential_that_is_refused_is_a_fault_that_names_the_option(
    skewed: str, over_file: Command
) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    ran = over_file("doctor", skewed, "--json")
    assert ran.code == Exit.UNEXPECTED
    assert ran.document["server"]["credential"] == "refused"
    finding = next(one for one in ran.document["findings"] if one["fault"])
    assert finding["next"] == f"mcp-tasks doctor {skewed} --bearer-env VAR"
    assert "s3cret" not in ran.out


def test_a_server_that_is_started_by_its_command_is_looked_at(over_file: Command) -> None:
    over_file.write(record(idempotency_key="a", state=finished(), delivered_at=NOW))
    script = Path(__file__).parents[1] / "servers" / "strict_server.py"
    command = (sys.executable, str(script), "stdio")
    ran = over_file("doctor", "--json", "--", *command)
    assert (ran.code, ran.document["server"]["reached"]) == (0, True), ran
    assert ran.document["server"]["address"] is None
    ran = over_file("doctor", "--json", "--", "/nowhere/server")
    assert ran.code == Exit.UNEXPECTED
    (fault,) = faults(ran.document, "server")
    assert "did not start" in fault
