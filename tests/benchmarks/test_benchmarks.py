"""The benchmarks work: every figure is in the table, and the server that witnesses sees what it should.

No timing is asserted here; what the figures are is told by ``python -m tests.benchmarks``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.benchmarks.commits import JOURNALS
from tests.benchmarks.figures import MEASUREMENTS, ROWS
from tests.benchmarks.imports import SETS
from tests.benchmarks.peers import PEERS
from tests.benchmarks.run import measured
from tests.benchmarks.server import TASKS, BenchmarkServer
from tests.benchmarks.table import NAMES, as_json, markdown
from tests.benchmarks.workloads import WORKLOADS


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


def test_early_polls_are_counted_of_the_default_policy_alone() -> None:
    runs = {"eager": {"ours-eager": [{"early": 5}]}, "plain": {"fastmcp": [{"early": 7}]}}
    assert _early(runs) is None
    assert _early({**runs, "calls": {"ours": [{"early": 1}], "ours-memory": [{"early": 2}]}}) == 3


def _early(runs: Any) -> Any:
    return {row["title"]: row["result"] for row in as_json(runs)["rows"]}["early polls, all of the above"]


class Caller:
    """Sends requests to the benchmarks' server without a connection."""

    def __init__(self) -> None:
        self.server = BenchmarkServer()

    def send(self, method: str, *, headers: str, **params: Any) -> dict[str, Any]:
        meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        head = f"POST /mcp HTTP/1.1\r\n{headers}".lower().encode()
        reply = self.server.answer(head, json.dumps(message).encode())
        assert isinstance(reply, bytes)
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


def test_the_server_witnesses_headers_that_are_missing_or_name_something_else() -> None:
    caller = Caller()
    task_id = caller.start(hint_ms=0)
    caller.poll(task_id)
    assert caller.witnessed("missing_name", "missing_method") == [0, 0]
    caller.send("tasks/get", headers="Mcp-Method: tasks/get", taskId=task_id)
    caller.send("tasks/get", headers="Mcp-Method: tasks/get\r\nMcp-Name: other", taskId=task_id)
    caller.send("tasks/get", headers=f"Mcp-Name: {task_id}", taskId=task_id)
    assert caller.witnessed("missing_name", "missing_method") == [2, 1]
