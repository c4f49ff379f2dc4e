"""``mcp-tasks doctor``: the faults of a journal, its calls and a server, each with a remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

import mcp_tasks_client as tasks
from mcp_tasks_client.estimate import format_span
from mcp_tasks_client.foreign_text import one_line

from .exits import CommandError, Exit
from .journal import JournalOption, KeysOption, Nowhere, SchemaOption, Where
from .lines import make_line, short_id
from .output import Output
from .running import run
from .seen import SeenCall, look_at
from .server import (
    AnyServer,
    BearerOption,
    HeaderEnvOption,
    HeaderOption,
    Server,
    name_server,
    read_server,
)
from .times import ago, ahead, exact, iso

if TYPE_CHECKING:
    from mcp_types import InitializeResult

__all__ = ["doctor"]

_TASKS: Final = "io.modelcontextprotocol/tasks"
_SERVER_LIMIT_S: Final = 30.0
_CLOCKS_DIFFER_S: Final = 60.0
"""Seconds of difference from which on a clock counts as wrong. The header has whole seconds."""

_MOST_IDS: Final = 5


@dataclass(frozen=True, slots=True)
class _Finding:
    """A finding, with its remedy.

    ``is_fault`` is false for ordinary events in the life of calls: an outcome that its program will receive,
    an open question.
    """

    about: str
    message: str
    next: str | None = None
    is_fault: bool = True

    def document(self) -> dict[str, Any]:
        """The finding for programs."""
        return {"about": self.about, "fault": self.is_fault, "message": self.message, "next": self.next}


def doctor(
    server: Annotated[
        str | None,
        typer.Argument(help="A server to be looked at as well: a URL, or FILE:NAME for one in an mcp.json."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON object.")] = False,
    header: HeaderOption = None,
    bearer_env: BearerOption = None,
    header_env: HeaderEnvOption = None,
    journal: JournalOption = None,
    schema: SchemaOption = None,
    keys: KeysOption = None,
) -> None:
    """Look for faults of the journal, its calls and a server.

    The exit code is 0 if there is no fault, and 1 if there is one. A journal with a fault is only read, and
    stays as it is.
    """
    where, output = Where(journal, schema, keys), Output(as_json=json)

    async def main() -> Exit:
        target = None if server is None else read_server(server, header, bearer_env, header_env)
        findings: list[_Finding] = []
        told = {
            "journal": await _look_at_journal(where, findings),
            "server": None if target is None else await _look_at_server(target, findings),
        }
        is_healthy = not any(one.is_fault for one in findings)
        if json:
            found = [one.document() for one in findings]
            output.document({"healthy": is_healthy, **told, "findings": found})
        else:
            output.text("\n".join(_tell(told, findings, is_healthy=is_healthy)))
        return Exit.RESULT if is_healthy else Exit.UNEXPECTED

    run(main, output, where)


# ── the journal ───────────────────────────────────────────────────────────────────────────────────


async def _look_at_journal(where: Where, findings: list[_Finding]) -> dict[str, Any]:
    """A journal and its calls, for programs. Faults are added to the findings."""
    examined = await where.name_journal().examine()
    is_new = not examined.is_there and not examined.users and where.journal is None
    if not is_new:
        findings += [_Finding("journal", fault) for fault in examined.faults]
    else:
        words = f"There is no journal yet. The first call makes it: {examined.name}"
        findings.append(_Finding("journal", words, "mcp-tasks call --help", is_fault=False))
    calls = None
    if examined.is_usable:
        try:
            calls = await _look_at_calls(where, findings)
        except tasks.JournalError as error:  # such as a lock that another process holds
            findings.append(_Finding("journal", str(error)))
    return {
        "name": examined.name,
        "database": examined.database,
        "usable": examined.is_usable,
        "version": examined.version,
        "size": examined.size,
        "file_system": examined.file_system,
        "users": [{"program": one.program, "host": one.host, "pid": one.pid} for one in examined.users],
        "calls": calls,
    }


async def _look_at_calls(where: Where, findings: list[_Finding]) -> dict[str, Any]:
    """The calls of a journal in numbers.

    Raises:
        JournalError: The journal could not be read.
    """
    async with where.inbox() as inbox:
        questions = await inbox.questions()
        seen = await look_at(inbox, await inbox.records(), questions)
    unknown = [one for one in seen if one.state == "outcome_unknown"]
    undriven = [
        one
        for one in seen
        if not (one.record.finished or one.is_driven or one.questions) and one.state != "outcome_unknown"
    ]
    undelivered = [one for one in seen if one.record.finished and one.record.delivered_at is None]
    findings += _findings_of(where, unknown, undriven, undelivered, questions)
    return {
        "all": len(seen),
        "unfinished": sum(not one.record.finished for one in seen),
        "unknown": len(unknown),
        "undriven": len(undriven),
        "undelivered": len(undelivered),
        "questions": len(questions),
        "answer_until": iso(_earliest(one.expires_at for one in questions)),
    }


def _findings_of(
    where: Where,
    unknown: Sequence[SeenCall],
    undriven: Sequence[SeenCall],
    undelivered: Sequence[SeenCall],
    questions: Sequence[tasks.Question],
) -> Iterator[_Finding]:
    if unknown:
        words = "of unknown outcome: its program ended before the server had replied. The tool may have run."
        line = where.line("ls", "--state", "outcome_unknown")
        yield _Finding("calls", f"{_count(unknown, 'call is', 'calls are')} {words}", line)
    if undriven:
        until = _until(_earliest(one.record.expires_at for one in undriven), "The server keeps the first")
        words = f"driven by no living program, so nobody polls. {until}To bring the outcome home:"
        yield _Finding("calls", f"{_count(undriven, 'task is', 'tasks are')} {words}", _wait(where, undriven))
    if undelivered:
        words = "received by no program yet. Its own program has it when it goes on. To see it:"
        line = where.line("ls")
        counted = _count(undelivered, "outcome is", "outcomes are")
        yield _Finding("calls", f"{counted} {words}", line, is_fault=False)
    if questions:
        until = _until(_earliest(one.expires_at for one in questions), "The first can be answered")
        counted = _count(questions, "question waits", "questions wait")
        yield _Finding(
            "calls", f"{counted} for an answer. {until}To see them:", where.line("questions"), is_fault=False
        )


def _wait(where: Where, calls: Sequence[SeenCall]) -> str:
    return where.line("wait", *(short_id(one.record.record_id) for one in calls[:_MOST_IDS]))


def _count(things: Sequence[object], one: str, several: str) -> str:
    return f"1 {one}" if len(things) == 1 else f"{len(things)} {several}"


def _earliest(times: Iterator[float | None]) -> float | None:
    return min((one for one in times if one is not None), default=None)


def _until(at: float | None, subject: str) -> str:
    if at is None:
        return ""
    if at < time.time():
        return f"The time-to-live of the first has passed, {ago(at)}. "
    return f"{subject} until {exact(at)}, {ahead(at)}. "


# ── the server ────────────────────────────────────────────────────────────────────────────────────


async def _look_at_server(server: AnyServer, findings: list[_Finding]) -> dict[str, Any]:
    """A server, for programs. Faults are added to the findings."""
    told: dict[str, Any] = {
        "address": server.name or None,
        "reached": False,
        "version": None,
        "name": None,
        "tasks": None,
        "tools": None,
        "credential": None,
        "login": None,
        "clock_ahead_s": None,
    }
    try:
        async with server.client(Nowhere(), "later") as client:
            with anyio.fail_after(_SERVER_LIMIT_S):
                said = await client.initialize()
                told |= {"reached": True, "version": said.protocol_version, "tasks": _makes_tasks(said)}
                told["name"] = said.server_info.name
                told["tools"] = len((await client.list_tools()).tools)
                if isinstance(server, Server):
                    told["login"] = _look_at_login(server)
                    given = server.has_credential or server.headers or told["login"]
                    told["credential"] = "accepted" if given else "not needed"
    except CommandError as error:  # such as a command that does not start
        if error.exit is Exit.USAGE:
            raise
        line = error.next
        if isinstance(cause := error.__cause__, tasks.CredentialRefusedError):
            told |= {"reached": cause.http_status is not None, "credential": "refused"}
            line = line or make_line("doctor", *name_server(server), "--bearer-env", "VAR")
        findings.append(_Finding("server", str(error), line))
    except tasks.SessionError as error:
        told["reached"] = told["reached"] or error.http_status is not None or error.code is not None
        findings.append(_Finding("server", str(error)))
    except TimeoutError:
        words = f"The server has not replied within {_SERVER_LIMIT_S:.0f} s. See that it runs, and its log."
        findings.append(_Finding("server", words))
    if told["tasks"] is False:
        words = (
            "The server makes no tasks: a call of it lasts as long as its connection, and cannot be taken up "
            "again. Its author adds the Tasks extension."
        )
        findings.append(_Finding("server", words, is_fault=False))
    if told["reached"] and isinstance(server, Server):
        told["clock_ahead_s"] = ahead_s = await _compare_clocks(server)
        if ahead_s is not None and abs(ahead_s) > _CLOCKS_DIFFER_S:
            which = "ahead of" if ahead_s > 0 else "behind"
            words = (
                f"The clock of the server is {format_span(abs(ahead_s))} {which} the clock of this machine, "
                "so that times of tasks are shown wrong. Set the wrong one of the two by NTP."
            )
            findings.append(_Finding("server", words))
    return told


def _look_at_login(server: Server) -> dict[str, Any] | None:
    """The login that was used, for programs, without its tokens."""
    login = None if server.has_credential else server.login_file().read()
    return None if login is None else {"expires_at": iso(login.expires_at), "renews": login.renews}


def _makes_tasks(said: InitializeResult) -> bool:
    """True if a server has declared tasks, in either version of the protocol."""
    declared = said.capabilities.model_dump(by_alias=True, exclude_none=True)
    return _TASKS in declared.get("extensions", {}) or "tasks" in declared


async def _compare_clocks(server: Server) -> float | None:
    """By how many seconds the clock of a server is ahead of ours; ``None`` if the server does not tell."""
    from email.utils import parsedate_to_datetime

    import httpx

    try:
        async with httpx.AsyncClient(timeout=_SERVER_LIMIT_S) as client:
            began = time.time()
            reply = await client.head(server.url, headers=server.headers)
            middle = (began + time.time()) / 2
        # The header leaves out the part of the second that has passed.
        return round(parsedate_to_datetime(reply.headers["Date"]).timestamp() + 0.5 - middle, 1)
    except (httpx.HTTPError, KeyError, ValueError):
        return None


# ── for people ────────────────────────────────────────────────────────────────────────────────────


def _tell(told: dict[str, Any], findings: Sequence[_Finding], *, is_healthy: bool) -> Iterator[str]:
    journal, server = told["journal"], told["server"]
    yield f"Journal  {one_line(journal['name'])}"
    parts = [
        journal["database"],
        f"tables of version {journal['version']}" if journal["version"] is not None else None,
        f"{journal['size'] / 1000:.0f} kB" if journal["size"] is not None else None,
        journal["file_system"],
    ]
    yield f"         {', '.join(one_line(one) for one in parts if one)}"
    for one in journal["users"]:
        at = "" if one["host"] is None else f" at {one_line(one['host'], 60)}"
        yield f"         open in {one_line(one['program'], 60)}, process {one['pid']}{at}"
    if (calls := journal["calls"]) is not None:
        yield f"Calls    {calls['all']} in all, {calls['unfinished']} not finished"
    if server is not None:
        yield f"Server   {one_line(server['address'] or 'started by its command')}"
        yield f"         {', '.join(_tell_server(server))}"
    for finding in findings:
        yield ""
        yield f"{'FAULT' if finding.is_fault else 'Note'}: {one_line(finding.message, 2_000)}"
        if finding.next is not None:
            yield f"  {finding.next}"
    yield ""
    faults = [one for one in findings if one.is_fault]
    yield "No fault was found." if is_healthy else _count(faults, "fault.", "faults.")


def _tell_server(server: dict[str, Any]) -> Iterator[str]:
    if not server["reached"]:
        yield "not reached"
        return
    yield "reached"
    if server["version"] is not None:
        yield f"{one_line(server['name'], 60)}, MCP {one_line(server['version'], 20)}"
        yield "makes tasks" if server["tasks"] else "makes no tasks"
    if server["tools"] is not None:
        yield "1 tool" if server["tools"] == 1 else f"{server['tools']} tools"
    if server["credential"] is not None:
        yield f"credential {server['credential']}"
    if (login := server["login"]) is not None:
        until = "" if login["expires_at"] is None else f" until {login['expires_at']}"
        yield f"login{until}{', which renews itself' if login['renews'] else ''}"
    if server["clock_ahead_s"] is not None:
        yield f"clock {server['clock_ahead_s']:+.1f} s"
