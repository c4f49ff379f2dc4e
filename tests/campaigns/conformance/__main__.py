"""Runs the client scenarios of the MCP conformance harness against ``client.py``, and prints a line for each.

::

    npm install @modelcontextprotocol/conformance@0.2.0-alpha.12 node@22    # in a folder of its own
    MCP_CONFORMANCE=that-folder/node_modules/.bin/conformance python -m tests.campaigns.conformance

The harness wants a newer Node than many machines have; the npm package ``node`` brings one, and a
``node`` beside the harness is taken before the one on the path. Nothing is downloaded here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .client import SCENARIOS

__all__ = ["Harness", "HarnessMissingError", "Outcome", "find_harness", "main", "run_scenario"]

VARIABLE: Final = "MCP_CONFORMANCE"
SPEC_VERSION: Final = "2026-07-28"
OLDEST_NODE: Final = 22
"""The first with ``fs.globSync``, which the harness imports."""

CLIENT: Final = Path(__file__).with_name("client.py")
LIMIT_S: Final = 90.0
"""For a scenario; the harness itself gives its client 30 seconds."""


class HarnessMissingError(Exception):
    """The harness cannot be run here. The message says what is missing."""


@dataclass(frozen=True, slots=True)
class Harness:
    """The harness, and the Node that can run it."""

    node: str
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the harness said of one scenario."""

    scenario: str
    accepted: bool
    """The harness's own verdict: no failure, no warning, and the client ended well."""

    checks: list[dict[str, Any]] = field(repr=False)
    output: str = field(repr=False)

    @property
    def passed(self) -> bool:
        """Accepted, and not for want of anything to check."""
        return self.accepted and self.count("SUCCESS") > 0

    def count(self, status: str) -> int:
        """How many checks ended so."""
        return sum(check["status"] == status for check in self.checks)

    def __str__(self) -> str:
        statuses = ("SUCCESS", "FAILURE", "WARNING", "SKIPPED")
        counts = ", ".join(f"{status.lower()} {self.count(status)}" for status in statuses)
        return f"{'pass' if self.passed else 'FAIL'}  {self.scenario}  ({counts})"


def find_harness() -> Harness:
    """The harness that the environment variable names.

    Raises:
        HarnessMissingError: There is none, or no Node that can run it.
    """
    script = os.environ.get(VARIABLE, "")
    if not script:
        raise HarnessMissingError(f"{VARIABLE} does not name the harness; see this module")
    if not Path(script).is_file():
        raise HarnessMissingError(f"{VARIABLE} names {script}, which is no file")
    beside = Path(script).with_name("node")
    node = str(beside) if beside.is_file() else shutil.which("node")
    if node is None:
        raise HarnessMissingError("Node is neither beside the harness nor on the path")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=LIMIT_S).stdout
    major = re.match(r"v(\d+)\.", version)
    if major is None or int(major[1]) < OLDEST_NODE:
        raise HarnessMissingError(
            f"the harness wants Node {OLDEST_NODE} or newer, this is {version.strip() or 'none'}"
        )
    return Harness(node, script)


def run_scenario(harness: Harness, scenario: str, results: Path) -> Outcome:
    """Run one scenario; the harness starts the client by itself.

    Args:
        harness: From :func:`find_harness`.
        scenario: One of ``SCENARIOS``.
        results: An empty folder for what the harness writes.

    Raises:
        subprocess.TimeoutExpired: The harness does not end.
    """
    command = [harness.node, harness.script, "client", "--scenario", scenario]
    # The harness gives the command to a shell.
    command += ["--command", shlex.join([sys.executable, str(CLIENT)])]
    command += ["--spec-version", SPEC_VERSION, "--output-dir", str(results)]
    run = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_S,
    )
    checks: list[dict[str, Any]] = []
    for file in results.glob("*/checks.json"):
        checks += json.loads(file.read_text(encoding="utf-8"))
    return Outcome(scenario=scenario, accepted=run.returncode == 0, checks=checks, output=run.stdout)


def main() -> int:
    """Run every scenario. Returns 1 if one did not pass, 2 if there is no harness."""
    try:
        harness = find_harness()
    except HarnessMissingError as error:
        print(error, file=sys.stderr)
        return 2
    status = 0
    for scenario in SCENARIOS:
        with tempfile.TemporaryDirectory() as results:
            outcome = run_scenario(harness, scenario, Path(results))
        print(outcome, flush=True)
        if not outcome.passed:
            status = 1
            print(outcome.output, file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
