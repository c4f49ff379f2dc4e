"""Every example, run as its users run it, with a coffee machine that is quicker than theirs."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

import anyio
import httpx
import pytest

from mcp_tasks_client import Inbox, TaskRecord, TasksClient
from mcp_tasks_client.testing import (
    ManualClock,
    ScriptedServer,
    ask,
    complete,
    form,
    scripted_client,
    text_result,
    work,
)

from .._forked import Program
from ..engine.other_process import OnDisk
from ..kit.ports import unused_port
from ..testing.asking import serve
from .browser import MISSING, Browser, browser, wait_for
from .pages import ROOT

EXAMPLES: Final = ROOT / "examples"
LIMIT_S: Final = 120.0

T = TypeVar("T")


@pytest.fixture(autouse=True)
def quick_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_STEP_S", "0.2")


def by_command(name: str) -> str:
    """What an example prints that is run by its command."""
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("shared")


@pytest.fixture
def slower_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with time to cancel an order in."""
    monkeypatch.setenv("DEMO_STEP_S", "0.8")


@pytest.fixture
def machine(shared: ModuleType, tmp_path: Path) -> Iterator[str]:
    """A coffee machine, for the examples that only talk to one."""
    with shared.running_server(tmp_path / "log") as url:
        yield url


def test_every_example_is_run_here_and_has_a_page() -> None:
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"demo_server", "shared"}
    assert programs == {
        "quickstart",
        "sdk_client",
        "fastmcp_client",
        "progress",
        "job_runner",
        "fleet",
        "web_service",
        "interrupt",
    }
    assert {path.stem for path in (ROOT / "docs/examples").glob("*.md")} == {
        *(name.replace("_", "-") for name in programs),
        "index",
    }


def test_quickstart_brings_the_task_of_a_killed_client_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_STEP_S", "1")  # the client is killed long before its task ends
    told = by_command("quickstart.py").splitlines()
    assert "     → Order 1: 2 cups of coffee with oat milk" in told
    assert told[-1] == "     nothing", "the journal is empty"


def test_the_job_runner_runs_each_job_once() -> None:
    assert "3  Three jobs, three orders" in by_command("job_runner.py")


@pytest.mark.parametrize("database", ["given", "its own"])
def test_a_fleet_finishes_what_a_killed_replica_had_begun(
    postgres: str, database: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if database == "given":
        monkeypatch.setenv("DATABASE", postgres)
    elif not request.config.getoption("--long"):
        pytest.skip("starts another server; --long runs it")
    monkeypatch.setenv("DEMO_STEP_S", "0.6")
    assert "4  6 orders, 6 coffees" in by_command("fleet.py")


def test_an_interrupt_is_resumed_in_another_process() -> None:
    assert by_command("interrupt.py").splitlines()[-1] == "     → Order 1: 2 cups of coffee with oat milk"


async def during(clock: ManualClock, work: Awaitable[T]) -> T:
    """What some work gives, while time passes: a second at a time, since what a journal's thread tells of is
    not waited for.
    """
    results: list[T] = []

    async def run() -> None:
        results.append(await work)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        while not results:
            await clock.advance(1)
            await anyio.sleep(0.005)
    return results[0]


@pytest.mark.anyio
async def test_an_interrupt_is_resumed_an_hour_later(shared: ModuleType, tmp_path: Path) -> None:
    program: Any = importlib.import_module("interrupt")
    clock = ManualClock()
    server = ScriptedServer(clock=clock)
    milk = ask("milk", form("Which milk?", milk="string"))
    server.tool("brew", [work(5), milk, work(5), complete(text_result("coffee"))], poll_interval_ms=1000)

    def client() -> TasksClient:
        return scripted_client(server.session(), journal=OnDisk(tmp_path / "journal.db", clock))

    with anyio.fail_after(30):
        async with client() as first:
            stored = json.dumps(await during(clock, program.run(first)))
        assert json.loads(stored)["asks"] == "Which milk?"
        await clock.advance(3600)
        async with client() as second:
            resumed = program.resume(second, json.loads(stored), "oat")
            assert await during(clock, resumed) == "coffee"
    server.witness.check(at_most_once=True)


@pytest.mark.usefixtures("slower_machine")  # before the machine starts
def test_the_programs_with_one_client(
    machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: dict[str, str] = {}
    for name in ("progress", "sdk_client", "fastmcp_client"):
        module: Any = importlib.import_module(name)
        anyio.run(module.main, machine, tmp_path / f"{name}.db")
        told[name] = capsys.readouterr().out
    assert "→ Order 1: 2 cups of coffee with oat milk" in told["progress"]
    assert "→ The task of 'brew' was cancelled." in told["progress"]
    assert "→ Order 3: 2 cups of coffee with oat milk" in told["sdk_client"]
    assert "     → Order 4: 1 cups of coffee with oat milk" in told["sdk_client"].partition("3  Later")[2]
    assert "→ Order 5: 2 cups of coffee with oat milk" in told["fastmcp_client"]
    assert told["fastmcp_client"].count("Order 6: 1 cups") == 2


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the web service, of its first instance."""
    port = unused_port()
    command = [sys.executable, "-u", str(EXAMPLES / "web_service.py"), str(port), str(unused_port())]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("The service is process ")
            wait_for(lambda: listens(port))
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.send_signal(signal.SIGINT)  # upon which it ends its children
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_an_order_survives_the_death_of_the_service_that_is_started_again(service: str) -> None:
    with httpx.Client(base_url=service, trust_env=False, timeout=30) as http:
        http.put("/orders/order-42").raise_for_status()
        with suppress(httpx.TransportError):  # there is no reply
            http.post("/kill")

        def waiting() -> dict[str, Any] | None:
            with suppress(httpx.TransportError):  # it is down
                return ordered(http, "input_required")
            return None

        (question,) = wait_for(waiting)["questions"]
        http.post(f"/questions/{question['id']}", params={"milk": "oat"}).raise_for_status()
        assert wait_for(lambda: ordered(http, "completed"))["result"].endswith("with oat milk")


@contextmanager
def instance(machine: str, journal: Path) -> Iterator[tuple[httpx.Client, Program]]:
    """One instance of the web service, which nobody starts again."""
    port = unused_port()
    with (
        Program(
            EXAMPLES / "web_service.py", "serve", machine, journal, journal.with_suffix(".orders"), port
        ) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http,
    ):
        try:
            wait_for(lambda: listens(port))
            yield http, process
        finally:
            process.kill()


def ordered(http: httpx.Client, status: str) -> dict[str, Any] | None:
    """The only order, once it has a status."""
    (order,) = http.get("/orders").raise_for_status().json()
    return order if order["status"] == status else None


def test_a_second_instance_answers_while_the_first_is_dead(machine: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"

    async def left() -> list[TaskRecord]:
        async with Inbox(journal) as inbox:
            return await inbox.records(pending=True)

    with instance(machine, journal) as (first, process), instance(machine, journal) as (second, _):
        assert first.put("/orders/order-42").status_code == 202
        assert first.put("/orders/order-42").status_code == 202
        order = wait_for(lambda: ordered(second, "input_required"))
        (question,) = order["questions"]
        assert question["message"] == "Which milk would you like?"
        process.kill()
        process.wait()
        path = f"/questions/{question['id']}"
        assert second.post(path, params={"milk": "oat"}).status_code == 202
        assert second.post(path, params={"milk": "cow"}).status_code == 409
        done = wait_for(lambda: ordered(second, "completed"))
        assert done["result"] == "Order 1: 1 cups of coffee with oat milk"
        assert done["questions"] == []
        # What is stored counts as delivered a moment later, so that it is forgotten one day.
        wait_for(lambda: anyio.run(left) == [])


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_a_question_is_answered_in_the_browser_at_a_second_instance_while_the_first_is_dead(
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal.db"
    server = ScriptedServer(tolerance_s=0.1)
    milk = ask("milk", form("Which milk?", milk="string"))
    coffee = complete(text_result("coffee with oat milk"))
    server.tool("brew", [work(0.5), milk, work(0.5), coffee], poll_interval_ms=200)
    with (
        serve(server) as machine,
        instance(machine, journal) as (first, process),
        instance(machine, journal) as (second, _),
        browser(tmp_path / "profile") as page,
    ):
        page.open(str(first.base_url))
        page.click("#brew")
        asked = wait_for(lambda: row(page, "input_required"))
        page.click("#kill")
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        wait_for(lambda: "down" in page.run("return document.getElementById('state').textContent"))
        page.open(str(second.base_url))
        assert wait_for(lambda: row(page, "input_required")) == asked
        assert page.run("return document.querySelectorAll('#orders form').length") == 1
        page.click("#orders button")
        order, _, said = wait_for(lambda: row(page, "completed"))
        assert (order, said) == (asked[0], "coffee with oat milk")
        assert page.run("return document.querySelectorAll('#orders form').length") == 0
    assert [arrival.tool for arrival in server.witness.log("tools/call")] == ["brew"]
    (task_id,) = server.witness.created
    (update,) = server.witness.log("tasks/update")
    assert update.params["inputResponses"] == {"milk": {"action": "accept", "content": {"milk": "oat"}}}
    assert server.witness.questions_answered == {(task_id, "milk")}
    server.witness.check(at_most_once=True)


def row(page: Browser, status: str) -> list[str] | None:
    """The cells of the only order, once it has a status."""
    rows = page.run(
        "return [...document.querySelectorAll('#orders tr')]"
        ".map((row) => [row.dataset.status, ...[...row.cells].map((cell) => cell.textContent)])"
    )
    return rows[0][1:] if len(rows) == 1 and rows[0][0] == status else None
