"""The benchmarks work: every figure is in the table, and the server that witnesses sees what it should.

No timing is asserted here; what the figures are is told by ``python -m tests.benchmarks``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.benchmarks.commits import JOURNALS
from tests.benchmarks.figures import MEASUREMENTS, ROWS, Row
from tests.benchmarks.imports import SETS
from tests.benchmarks.peers import PEERS
from tests.benchmarks.run import measured
from tests.benchmarks.server import METHOD_NOT_FOUND, NOTIFYING, TASKS, BenchmarkServer, Connection, Stream
from tests.benchmarks.table import MARKERS, NAMES, as_json, markdown, pasted
from tests.benchmarks.workloads import WORKLOADS, quantile


def test_only_the_rows_of_what_is_measured_are_in_the_table() -> None:
    (whole,) = [one for one in MEASUREMENTS if one.name == "dropped-call"]
    chosen = replace(whole, who=("in-mcp", "mcp"))
    runs = measured([chosen], quick=True, tell=lambda line: None, count=2)
    assert {who: len(found) for who, found in runs["dropped-call"].items()} == dict.fromkeys(chosen.who, 1)
    rows = [row for row in ROWS if row.measurement in ("dropped-call", None)]
    lines = markdown(runs).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [row.title for row in rows]
    for row, line in zip(rows, lines, strict=True):
        here = row.measurement is None or {row.who, row.against or row.who} <= set(chosen.who)
        assert ("not measured" in line) != here
    results = {row["title"]: row["result"] for row in as_json(runs)["rows"]}
    assert results["early polls, all of the above"] == 0
    assert results["requests without their Mcp-Name or Mcp-Method, all of the above"] == 0


def test_whoever_and_whatever_is_measured_exists() -> None:
    known = {name: set(PEERS) for name in WORKLOADS} | {"commits": set(JOURNALS), "imports": set(SETS)}
    clients = {one.name: set(one.who) for one in MEASUREMENTS}
    assert len(clients) == len(MEASUREMENTS)
    assert {one.work for one in MEASUREMENTS} == known.keys()
    for one in MEASUREMENTS:
        assert set(one.who) <= known[one.work]
    for row in ROWS:
        if row.measurement is not None:
            assert {row.who, row.against or row.who} <= clients[row.measurement]
        assert row.against is None or row.against in NAMES


@pytest.mark.parametrize("name", ["notified", "burst-100"])
def test_a_client_does_the_work_of_its_measurement_at_the_path_where_that_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, ...]] = []

    def say(*options: str) -> dict[str, Any]:
        said.append(options)
        return {}

    monkeypatch.setattr("tests.benchmarks.run._said", say)
    (chosen,) = [one for one in MEASUREMENTS if one.name == name]
    measured([chosen], quick=True, tell=lambda line: None)
    work, path = {"notified": ("notified", NOTIFYING), "burst-100": ("burst", "/mcp")}[name]
    assert {options[:3] for options in said} == {("client", who, work) for who in chosen.who}
    assert {urlsplit(options[-1]).path for options in said} == {path}


@pytest.mark.parametrize(
    ("own", "other", "missed"),
    [([1.0, 3.0, 2.0], [4.0, 4.0, 4.0], False), ([1.0, 9.0, 3.0], [2.0, 9.0, 4.0], True)],
)
def test_a_ratio_is_the_median_over_pairs_of_runs_and_missed_beyond_its_limit(
    own: list[float], other: list[float], missed: bool
) -> None:
    row = Row(
        title="", measurement="", value=lambda found: found["s"], unit="s", against="fastmcp", limit=0.5
    )
    result = row.result({"ours": [{"s": one} for one in own], "fastmcp": [{"s": one} for one in other]})
    assert result == (0.75 if missed else 0.5)
    assert row.missed(result) is missed
    assert row.missed(float("nan"))


def test_early_polls_are_counted_of_the_default_policy_alone() -> None:
    runs = {"eager": {"ours-eager": [{"early": 5}]}, "plain": {"fastmcp": [{"early": 7}]}}
    assert _early(runs) is None
    assert _early({**runs, "calls": {"ours": [{"early": 1}], "ours-memory": [{"early": 2}]}}) == 3


def _early(runs: Any) -> Any:
    return {row["title"]: row["result"] for row in as_json(runs)["rows"]}["early polls, all of the above"]


def test_a_table_takes_the_place_of_the_one_before() -> None:
    begin, end = MARKERS
    document = f"before\n{begin}\nnot run yet\n{end}\nafter {begin} and {end}\n"
    once = pasted(document, "| a |\n| b |")
    assert once == f"before\n{begin}\n| a |\n| b |\n{end}\nafter {begin} and {end}\n"
    assert pasted(once, "not run yet") == document


@pytest.mark.parametrize("lines", [[], [0], [1], [1, 0], [0, 0, 1], [0, 1, 1], [0, 1, 0, 1]])
def test_a_document_without_one_pair_of_markers_takes_no_table(lines: list[int]) -> None:
    document = "\n".join(["", *(MARKERS[line] for line in lines), ""])
    with pytest.raises(ValueError, match="not one pair"):
        pasted(document, "| a |")


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], fraction) for fraction in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]


class Caller:
    """Sends requests to the benchmarks' server without a connection."""

    def __init__(self) -> None:
        self.server = BenchmarkServer()

    def request(self, method: str, *, headers: str, path: str = "/mcp", **params: Any) -> tuple[bytes, bytes]:
        """Its head and its body."""
        meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return f"POST {path} HTTP/1.1\r\n{headers}".lower().encode(), json.dumps(message).encode()

    def send(self, method: str, *, headers: str, **params: Any) -> dict[str, Any]:
        reply = self.server.answer(*self.request(method, headers=headers, **params))
        assert isinstance(reply, bytes)
        result = json.loads(reply.partition(b"\r\n\r\n")[2])["result"]
        assert isinstance(result, dict)
        return result

    def wish(self, *task_ids: str, path: str = NOTIFYING) -> tuple[bytes, bytes]:
        """The request that asks to be told of tasks."""
        headers = "Mcp-Method: subscriptions/listen"
        wanted = {"taskIds": task_ids}
        return self.request("subscriptions/listen", headers=headers, path=path, notifications=wanted)

    def start(self, **script: float) -> str:
        headers = "Mcp-Method: tools/call\r\nMcp-Name: work"
        result = self.send("tools/call", headers=headers, name="work", arguments=script)
        assert result["resultType"] == "task"
        return str(result["taskId"])

    def poll(self, task_id: str) -> str:
        headers = f"Mcp-Method: tasks/get\r\nMcp-Name: {task_id}"
        return str(self.send("tasks/get", headers=headers, taskId=task_id)["status"])

    def witnessed(self, *names: str) -> list[float]:
        seen = self.server.witness()
        return [seen[name] for name in names]


def test_the_server_witnesses_a_poll_before_the_hint_is_over() -> None:
    caller = Caller()
    patient = caller.start(hint_ms=0)
    caller.poll(patient)
    assert caller.witnessed("early") == [0]
    hasty = caller.start(hint_ms=3_600_000)
    caller.poll(hasty)
    caller.poll(hasty)
    assert caller.witnessed("early") == [2]


def test_without_a_hint_no_poll_is_early() -> None:
    caller = Caller()
    headers = "Mcp-Method: tools/call\r\nMcp-Name: work"
    result = caller.send("tools/call", headers=headers, name="work", arguments={})
    assert "pollIntervalMs" not in result
    caller.poll(result["taskId"])
    assert caller.witnessed("early", "most_polls", "most_looks") == [0, 1, 0]


def test_the_server_witnesses_the_most_polls_of_a_task_and_of_its_first_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Caller()
    assert caller.witnessed("most_polls", "most_looks") == [0, 0]
    other, task_id = caller.start(hint_ms=5_000, polls=9), caller.start(hint_ms=5_000, polls=9)
    caller.poll(other)
    caller.poll(task_id)
    caller.poll(task_id)
    now = time.monotonic()
    monkeypatch.setattr("tests.benchmarks.server.time.monotonic", lambda: now + 5)
    caller.poll(task_id)
    assert caller.witnessed("most_polls", "most_looks") == [3, 2]


def test_the_server_tells_of_the_end_of_tasks_that_are_not_over() -> None:
    caller = Caller()
    over, soon, late = (caller.start(hint_ms=0, duration_ms=one) for one in (0, 500, 3_600_000))
    told = asyncio.run(_told(caller, over, soon, late, "unknown", messages=2))
    assert [one["method"] for one in told] == [
        "notifications/subscriptions/acknowledged",
        "notifications/tasks",
    ]
    assert told[0]["params"]["notifications"] == {"taskIds": [over, soon, late]}
    assert told[1]["params"]["taskId"] == soon
    assert told[1]["params"]["status"] == "completed"
    assert caller.witnessed("told", "unfetched") == [1, 2]


async def _told(caller: Caller, *task_ids: str, messages: int) -> list[dict[str, Any]]:
    """What a stream tells first; it is then closed."""
    stream = caller.server.answer(*caller.wish(*task_ids))
    assert isinstance(stream, Stream)
    written: asyncio.Queue[bytes] = asyncio.Queue()
    stream.open(written.put_nowait)
    async with asyncio.timeout(30):
        chunks = [await written.get() for _ in range(messages)]
    stream.close()
    assert written.empty()
    return [json.loads(one.partition(b"data: ")[2].removesuffix(b"\n\n\r\n")) for one in chunks]


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(data)


def test_a_stream_whose_connection_is_gone_tells_nothing_more() -> None:
    caller = Caller()
    task_id = caller.start(hint_ms=0, duration_ms=20)

    async def gone_and_another() -> list[bytes]:
        wire, connection = Wire(), Connection(caller.server)
        connection.connection_made(wire)
        head, body = caller.wish(task_id)
        connection.data_received(b"%b\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
        connection.connection_lost(None)
        await _told(caller, task_id, messages=2)
        return wire.written

    assert len(asyncio.run(gone_and_another())) == 1
    assert caller.witnessed("told") == [1]


def test_the_server_tells_nothing_under_the_path_of_the_other_workloads() -> None:
    caller = Caller()
    refusal = caller.server.answer(*caller.wish(caller.start(hint_ms=0), path="/mcp"))
    assert isinstance(refusal, bytes)
    assert json.loads(refusal.partition(b"\r\n\r\n")[2])["error"]["code"] == METHOD_NOT_FOUND


def test_the_server_witnesses_headers_that_are_missing_or_name_something_else() -> None:
    caller = Caller()
    task_id = caller.start(hint_ms=0)
    caller.poll(task_id)
    assert caller.witnessed("missing_name", "missing_method") == [0, 0]
    caller.send("tasks/get", headers="Mcp-Method: tasks/get", taskId=task_id)
    caller.send("tasks/get", headers="Mcp-Method: tasks/get\r\nMcp-Name: other", taskId=task_id)
    caller.send("tasks/get", headers=f"Mcp-Name: {task_id}", taskId=task_id)
    assert caller.witnessed("missing_name", "missing_method") == [2, 1]


def test_a_task_is_over_with_its_last_poll_and_not_before_its_time() -> None:
    caller = Caller()
    counted, long = caller.start(hint_ms=0, polls=3), caller.start(hint_ms=0, duration_ms=3_600_000)
    assert [caller.poll(counted) for _ in range(3)] == ["working", "working", "completed"]
    assert caller.poll(long) == "working"
    assert caller.witnessed("created", "unfetched") == [2, 1]


def test_no_module_of_the_benchmarks_is_called_like_one_that_the_server_imports() -> None:
    # The server is run by its path, so that its folder is where it imports from first.
    folder = Path(__file__).parent
    assert not {path.stem for path in folder.glob("*.py")} & sys.stdlib_module_names
