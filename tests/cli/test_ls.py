"""``ls`` without ``--watch``: the columns, their order, and the filters."""

from __future__ import annotations

import re
from time import time

import pytest

from mcp_tasks_client import Scope
from mcp_tasks_client.cli.exits import Exit
from mcp_tasks_client.testing.samples import finished, observing, record
from tests.kit.command import Command, asking, form


@pytest.fixture
def calls(over_file: Command) -> Command:
    """The command over a journal with a call of each kind that a list tells apart."""
    at = time()
    over_file.write(
        record(
            record_id="received-by-its-program",
            tool="build",
            label="Nightly",
            scope=Scope("https://one.example/mcp", "ada"),
            state=finished(),
            idempotency_key="k",
            created_at=at - 900,
            delivered_at=at - 600,
        ),
        record(
            record_id="ended-and-not-received",
            tool="build",
            scope=Scope("https://one.example/mcp", "ada"),
            state=finished(),
            created_at=at - 7200,
        ),
        record(
            record_id="working-for-two-days",
            tool="test",
            label="Nightly",
            scope=Scope("https://two.example/mcp", "bob"),
            state=observing(),
            created_at=at - 180_000,
        ),
        asking(
            form(),
            record_id="asks-something",
            tool="deploy",
            label=None,
            scope=Scope("https://two.example/mcp", "bob"),
            created_at=at - 60,
        ),
    )
    return over_file


def test_the_table_has_these_columns_and_the_newest_call_last(calls: Command) -> None:
    calls.variables["COLUMNS"] = "200"
    ran = calls("ls", "--all")
    assert (ran.code, ran.err) == (0, "")
    head, *rows = (re.split(r"  +", line.strip()) for line in ran.out.splitlines())
    assert head == ["ID", "STATE", "CALL", "SERVER", "AGE"]
    one, two = "https://one.example/mcp", "https://two.example/mcp"
    assert rows[:3] == [
        ["working-", "working", "test: Nightly", two, "2d2h", "nobody drives it"],
        ["ended-an", "completed", "build", one, "2h", "not received"],
        ["received", "completed", "build: Nightly", one, "5m"],  # until it was received
    ]
    asks = rows[3]
    assert asks[:4] == ["asks-som", "input_required", "deploy", two]
    assert re.fullmatch(r"1m(\d+s)?", asks[4])
    assert re.fullmatch(r"waits for an answer .*1m(\d+s)?", asks[5])


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["working-", "ended-an", "asks-som"]),
        (["--all"], ["working-", "ended-an", "received", "asks-som"]),
        (["--all", "--limit", "2"], ["received", "asks-som"]),
        (["--state", "input_required"], ["asks-som"]),
        (["--all", "--state", "completed"], ["ended-an", "received"]),
        (["--server", "two.example"], ["working-", "asks-som"]),
        (["--all", "--tool", "build"], ["ended-an", "received"]),
        (["--all", "--label", "Nightly"], ["working-", "received"]),
        (["--all", "--label", "Nightly", "--tool", "test"], ["working-"]),
        (["--principal", "bob"], ["working-", "asks-som"]),
    ],
    ids=lambda given: " ".join(given) or "none",
)
def test_a_filter_leaves_out_all_other_calls(calls: Command, options: list[str], found: list[str]) -> None:
    assert [line[:8] for line in calls("ls", *options).out.splitlines()[1:]] == found
    assert [one["record"][:8] for one in calls("ls", "--json", *options).document] == found


def test_where_no_call_fits_the_list_is_empty_and_says_so(calls: Command) -> None:
    ran = calls("ls", "--tool", "other")
    assert (ran.code, ran.out, ran.err) == (0, "", "No call is open.\n")
    assert calls("ls", "--all", "--tool", "other").err == "The journal has no such call.\n"
    assert calls("ls", "--limit", "0").code == Exit.USAGE
