"""What a bridge costs, against the same server without one: ``python -m tests.benchmarks.bridge``.

One run asks the server by turns directly, over one pool of connections, and through a bridge. It prints the
start of a bridge that remembers the server, and the latency and the CPU time of a call that makes no task.
CPU is that of the process that speaks to the server: of the host without a bridge, else of the bridge.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

import httpx
import psutil

from tests.campaigns.torture.run import servers
from tests.kit.json_rpc_host import JsonRpcHost
from tests.kit.piped_bridge import OLDER, PipedBridge

_RUNS: Final = 3
_CALLS: Final = 200
_AT_ONCE: Final = 50


def _start(url: str, journal: Path) -> tuple[PipedBridge, dict[str, float]]:
    command = [sys.executable, "-m", "mcp_tasks_client", "bridge", url, "--journal", str(journal)]
    began = time.monotonic()
    process: Any = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    bridge, found = PipedBridge(process, OLDER, {}, "host"), {}
    bridge.read_on()
    for name, ask in (("initialize", bridge.introduce), ("tools/list", lambda: bridge.ask("tools/list"))):
        ask()
        found[f"{name}, s"] = time.monotonic() - began
        found[f"{name}, CPU s"] = _cpu_s(process.pid)
    return bridge, found


def _cpu_s(pid: int | None = None) -> float:
    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


def _of_calls(times_s: list[float], cpu_s: float, wall_s: float, what: str) -> dict[str, float]:
    return {
        f"{what}: p50, ms": median(times_s) * 1e3,
        f"{what}: p99, ms": quantiles(times_s, n=100)[98] * 1e3,
        f"{what}: all, s": wall_s,
        f"{what}: CPU a call, ms": cpu_s / len(times_s) * 1e3,
    }


def _call_bridge(bridge: PipedBridge) -> dict[str, float]:
    params = {"name": "quick", "arguments": {"intent": "a"}}
    found, pid = {}, bridge.process.pid
    cpu_s, began, times = _cpu_s(pid), time.monotonic(), []
    for number in range(_CALLS):
        at = time.monotonic()
        bridge.call("quick", {"intent": str(number)})
        times.append(time.monotonic() - at)
    found |= _of_calls(times, _cpu_s(pid) - cpu_s, time.monotonic() - began, "in sequence")
    cpu_s, began, times = _cpu_s(pid), time.monotonic(), []
    for number in range(_AT_ONCE):
        bridge.request("tools/call", {**params, "arguments": {"intent": f"{number} at once"}})
    while len(times) < _AT_ONCE:
        assert "result" in bridge.next_message()
        times.append(time.monotonic() - began)
    return found | _of_calls(times, _cpu_s(pid) - cpu_s, time.monotonic() - began, "at once")


def _call_directly(url: str) -> dict[str, float]:
    host = JsonRpcHost(None, url=url)

    def call(number: object) -> float:
        at = time.monotonic()
        body = host.body("quick", {"intent": str(number)})
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": host.version,
            "mcp-method": "tools/call",
            "mcp-name": "quick",
        }
        reply = client.post(url, json=body, headers=headers)
        assert "result" in reply.text, reply.text
        return time.monotonic() - at

    with httpx.Client(trust_env=False, timeout=60) as client:
        call("first")
        cpu_s, began = _cpu_s(), time.monotonic()
        found = _of_calls(
            [call(one) for one in range(_CALLS)], _cpu_s() - cpu_s, time.monotonic() - began, "in sequence"
        )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            [*pool.map(call, range(_AT_ONCE))]  # each has its connection
            cpu_s, began = _cpu_s(), time.monotonic()
            times = [*pool.map(call, range(_AT_ONCE))]
        return found | _of_calls(times, _cpu_s() - cpu_s, time.monotonic() - began, "at once")


def _imports_cpu_s(what: str) -> float:
    program = f"import time, {what}; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, servers(0, Path(folder)) as server:
        url, journal = server.endpoint("fastmcp"), Path(folder) / "journal.sqlite3"
        bridge, _ = _start(url, journal)  # which remembers the server
        time.sleep(1)
        bridge.end()
        for _ in range(_RUNS):
            bridge, start = _start(url, journal)
            bridge.call("quick", {"intent": "first"})
            print(json.dumps({name: round(value, 2) for name, value in start.items()}))
            for name in ("mcp.server", "mcp_tasks_client.bridge.stdio, mcp_tasks_client.cli.program"):
                print(f"  CPU of the import of {name}: {_imports_cpu_s(name):.2f} s")
            direct, through = _call_directly(url), _call_bridge(bridge)
            bridge.end()
            for name, value in direct.items():
                print(
                    f"  {name}: {value:.2f} directly, {through[name]:.2f}, {through[name] / value:.2f} times"
                )


if __name__ == "__main__":
    main()
