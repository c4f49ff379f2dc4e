"""The contract of journals, run as a stranger runs it: over the journal of the guide, and broken ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from mcp_tasks_client.testing.journal_contract import JournalContract

from ..docs.pages import ROOT, blocks_of

GUIDE: Final = ROOT / "docs" / "guides" / "own-journal.md"

BROKEN: Final = '''
from dataclasses import replace

from mcp_tasks_client import Taken


class Unfenced(MemoryJournal):
    """Whoever was overtaken writes all the same."""

    async def save(self, record, **options):
        stored = await self.by_id(record.record_id)
        await super().save(replace(record, fence=stored.fence) if stored else record, **options)


class Hasty(MemoryJournal):
    """Whoever takes a record looks first, and writes later."""

    async def take(self, record_id, owner, gone=()):
        stored = await self.by_id(record_id)
        if stored is None or stored.owner not in (None, owner, *gone):
            return stored and Taken(stored, stored.owner)
        taken = replace(stored, owner=owner, fence=stored.fence + 1)
        await self.remove(stored)
        await self.save(taken)
        return Taken(taken, stored.owner)


class LastWord(MemoryJournal):
    """Whoever leaves an instruction late is told that it counts."""

    async def instruct(self, record_id, instruction):
        return await super().instruct(record_id, instruction) and instruction


class Forgetful(MemoryJournal):
    """What was written is gone with whoever has written it."""


class Broken(JournalContract):
    @pytest.fixture
    def make_journal(self):
        journal = self.kind()
        return lambda: journal


class TestUnfenced(Broken):
    kind = Unfenced


class TestHasty(Broken):
    kind = Hasty


class TestLastWord(Broken):
    kind = LastWord


class TestForgetful(JournalContract):
    shared = False

    @pytest.fixture
    def make_journal(self):
        return Forgetful
'''

NOTICED: Final = {
    "TestUnfenced": "test_what_was_taken_since_is_not_written_by_a_late_owner",
    "TestHasty": "test_of_many_who_take_at_once_one_does",
    "TestLastWord": "test_the_first_instruction_of_a_name_is_the_one_that_counts",
    "TestForgetful": "test_whoever_opens_it_next_finds_what_there_was",
}


def test_the_journal_of_the_guide_keeps_the_contract_and_broken_ones_are_noticed(tmp_path: Path) -> None:
    program = tmp_path / "test_own.py"
    program.write_text("\n".join([*blocks_of(GUIDE), BROKEN]), encoding="utf-8")
    (tmp_path / "conftest.py").write_text("import os\n\nos.fsync = lambda file: None  # the power stays on\n")
    report = tmp_path / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", "-k", "asyncio", "--rootdir", str(tmp_path)]
    chosen = [f"{of}::{name}" for of, name in NOTICED.items()]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={report}"]
        + [f"{program}::{one}" for one in ("TestLogJournal", *chosen)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr

    outcomes: dict[str, Counter[str]] = {}
    failed: dict[tuple[str, str], str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        of, name = case.attrib["classname"].rpartition(".")[2], case.attrib["name"].partition("[")[0]
        outcome = next((child.tag for child in case), "passed")
        outcomes.setdefault(of, Counter())[outcome] += 1
        if outcome in ("failure", "error"):
            failed[of, name] = case[0].attrib["message"]

    assert not [name for of, name in failed if of == "TestLogJournal"]
    assert outcomes["TestLogJournal"].keys() == {"passed", "skipped"}
    assert outcomes["TestLogJournal"]["skipped"] == 11, "what two need, and two event loops"
    assert outcomes["TestLogJournal"]["passed"] > 100
    assert failed.keys() == set(NOTICED.items())
    assert "assert 20 == 1" in failed["TestHasty", NOTICED["TestHasty"]], "it says what it has compared"


def test_no_part_of_the_contract_hides_a_test_of_another() -> None:
    names = Counter(
        name for part in JournalContract.__mro__ for name in vars(part) if name.startswith("test_")
    )
    assert len(names) > 80
    assert names.total() == len(names)
