"""The benchmarks work: every figure is in the table, and the server that witnesses sees what it should.

No timing is asserted here; what the figures are is told by ``python -m tests.benchmarks``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.commits import JOURNALS
from tests.benchmarks.figures import MEASUREMENTS, ROWS, Row
from tests.benchmarks.imports import SETS
from tests.benchmarks.peers import PEERS
from tests.benchmarks.run import measured
from tests.benchmarks.server import TASKS, Server
from tests.benchmarks.table import NAMES, as_json, markdown
from tests.benchmarks.workloads import WORKLOADS, quantile


def test_a_figure_is_measured_and_every_other_is_in_the_table_as_not_measured() -> None:
    (plain,) = [one for one in MEASUREMENTS if one.name == "plain"]
    runs = measured([plain], quick=True, tell=lambda line: None, count=2)
    assert {who: len(found) for who, found in runs["plain"].items()} == dict.fromkeys(plain.who, 1)
    rows = as_json(runs)["rows"]
    results = {row["title"]: row["result"] for row in rows}
    assert results["commits of calls that make no task"] == 0
    assert results["early polls, all of the above"] == 0
    assert results["requests without their Mcp-Name or Mcp-Method, all of the above"] == 0
    lines = markdown(runs).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [row.title for row in ROWS]
    for row, line in zip(ROWS, lines, strict=True):
        assert ("not measured" in line) == (row.measurement not in ("plain", None))


def test_whoever_and_whatever_is_measured_exists() -> None:
    known = {name: set(PEERS) for name in WORKLOADS} | {"commits": set(JOURNALS), "imports": set(SETS)}
    clients = {one.name: set(one.who) for one in MEASUREMENTS}
    assert clients.keys() == known.keys()
    for name, who in clients.items():
        assert who <= known[name]
    for row in ROWS:
        if row.measurement is not None:
            assert {row.who, row.against or row.who} <= clients[row.measurement]
        assert row.against is None or row.against in NAMES


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


def test_a_quantile_is_one_of_the_values() -> None:
    assert [quantile([3.0, 1.0, 2.0], fraction) for fraction in (0.0, 0.5, 0.99)] == [1.0, 2.0, 3.0]


class Caller:
    """Sends requests to the benchmarks' server without a connection."""

    def __init__(self) -> None:
        self.server = Server()

    def send(self, method: str, *, headers: str, **params: Any) -> dict[str, Any]:
        meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        head = f"POST /mcp HTTP/1.1\r\n{headers}".lower().encode()
        reply = self.server.answer(head, json.dumps(message).encode())
        result = json.loads(reply.partition(b"\r\n\r\n")[2])["result"]
        assert isinstance(result, dict)
        return result

    def start(self, **script: float) -> str:
        headers = "Mcp-Method: tools/call\r\nMcp-Name: work"
        result = self.send("tools/call", headers=headers, name="work", arguments=script)
        assert result["resultType"] == "task"
        return str(result["taskId"])

    def poll(self, task_id: str) -> str:
        headers = f"Mcp-Method: tasks/get\r\nMcp-Name: {task_id}"
        return str(self.send("tasks/get", headers=headers, taskId=task_id)["status"])

    def witnessed(self, *names: str) -> list[int]:
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
    folder = Path(__file__).with_name("benchmarks")
    assert not {path.stem for path in folder.glob("*.py")} & sys.stdlib_module_names
