"""What may not happen, and what did: by the logs of the hosts, and by what has reached the server."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

from ..outcome import Campaign
from ..torture.evidence import Line, Request
from .host import BRIDGES_A_LIFE

__all__ = ["Evidence", "judge"]

NOTED_S: Final = 2.0
"""Seconds that a reply may take from the server to the log of the host, on a machine that is busy."""

LOST: Final = "promised references without their result"
TWICE: Final = "tools run twice"
BY_NOBODY: Final = "answers that no person gave"
DIFFER: Final = "questions with two answers"
FOREIGN: Final = "results or references of others"
ERRORS: Final = "other errors"
UNFINISHED: Final = "calls that came to no end"
UNFOUNDED: Final = "outcomes called unknown that were not"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known when all is over.

    Attributes:
        lines: What the hosts, and those who answer from outside, wrote down, and who, in the order of time.
        requests: What has reached the server.
        kind_of: The place and the name of each host.
        hosts_killed_at: By their numbers, in seconds of ``time.monotonic()``.
        bridges_killed_at: Likewise.
    """

    lines: Sequence[tuple[int, Line]]
    requests: Sequence[Request]
    kind_of: dict[int, tuple[int, str]]
    hosts_killed_at: dict[int, float]
    bridges_killed_at: dict[int, float]

    def ended_at(self, bridge: int | None) -> float:
        """When a bridge was killed, or its host; infinity if neither was."""
        if bridge is None:
            return math.inf
        host = self.hosts_killed_at.get(bridge // BRIDGES_A_LIFE, math.inf)
        return min(host, self.bridges_killed_at.get(bridge, math.inf))

    @cached_property
    def of_intent(self) -> dict[str, list[tuple[int, Line]]]:
        """The lines of the hosts about each call."""
        found: defaultdict[str, list[tuple[int, Line]]] = defaultdict(list)
        for life, line in self.lines:
            if line.intent is not None and life in self.kind_of:
                found[line.intent].append((life, line))
        return dict(found)

    @cached_property
    def runs(self) -> dict[str, list[Request]]:
        """Each ``tools/call`` that begins a call, by its intent."""
        found: defaultdict[str, list[Request]] = defaultdict(list)
        for one in self.requests:
            if one.method == "tools/call" and one.request_state is None and one.intent is not None:
                found[one.intent].append(one)
        return dict(found)

    @cached_property
    def intents(self) -> dict[str, str]:
        """The call of each task."""
        return {
            one.task_id: one.intent
            for one in self.requests
            if one.method == "tools/call" and one.task_id is not None and one.intent is not None
        }

    @cached_property
    def committed(self) -> set[str]:
        """The tasks that a bridge has asked about. Nothing is sent about a task that is not committed."""
        return {one.task_id for one in self.requests if one.method.startswith("tasks/") and one.task_id}

    @cached_property
    def made(self) -> dict[str, list[Request]]:
        """The replies with a result, by the call."""
        found: defaultdict[str, list[Request]] = defaultdict(list)
        for one in self.requests:
            intent = one.intent or self.intents.get(one.task_id or "")
            if one.made is not None and intent is not None:
                found[intent].append(one)
        return dict(found)


def judge(evidence: Evidence, complaints: Sequence[str] = ()) -> Campaign:
    """Say what did not hold.

    Args:
        evidence: Of one run.
        complaints: What the server holds against the bridges by itself.
    """
    campaign = Campaign()
    words = Counter(line.what for life, line in evidence.lines if life in evidence.kind_of)
    campaign.figures |= {
        "hosts killed": len(evidence.hosts_killed_at),
        "bridges killed": len(evidence.bridges_killed_at),
        "calls": len(evidence.of_intent),
        "results delivered": len({line.intent for _, line in evidence.lines if line.what == "delivered"}),
        "answers in between": words["promised"],
        "given up by the host": words["given up"],
        "questions that a host's person answered": words["answered"],
        "answers from outside that counted": sum(line.what == "given" for _, line in evidence.lines),
        "tasks": len(evidence.intents),
    }
    campaign.expect_none(LOST, TWICE, BY_NOBODY, DIFFER, FOREIGN, UNFINISHED, UNFOUNDED, ERRORS)
    for complaint in complaints:
        campaign.breach(ERRORS, complaint)
    for life, line in evidence.lines:
        if line.what == "error":
            campaign.breach(ERRORS, f"life {life}, {line.intent}, at {line.at:.3f}: {line.text}")
        elif line.what == "done" and line.text != "0":
            campaign.breach(ERRORS, f"the bridge of life {life} ended with {line.text}")
    _judge_ends(campaign, evidence)
    _judge_runs(campaign, evidence)
    _judge_answers(campaign, evidence)
    _judge_foreign(campaign, evidence)
    return campaign


def _judge_ends(campaign: Campaign, evidence: Evidence) -> None:
    unknown = 0
    for intent, lines in evidence.of_intent.items():
        last = {line.what for _, line in lines}
        promised = [line for _, line in lines if line.what == "promised" and line.committed]
        for life, line in lines:
            if line.what == "gone" and any(one.at < line.at for one in promised):
                campaign.breach(LOST, f"life {life} was told at {line.at:.3f} of {intent}: {line.text}")
            elif line.what == "unknown":
                unknown += 1
                runs = [run for run in evidence.runs.get(intent, ()) if run.at < line.at]
                if not any(evidence.ended_at(run.life) < line.at for run in runs) and runs:
                    campaign.breach(UNFOUNDED, f"{intent} by life {life} at {line.at:.3f}")
        if "delivered" not in last and not last & {"unknown", "error"}:
            name = LOST if promised else UNFINISHED
            campaign.breach(name, f"{intent}: {[(life, line.what, line.text) for life, line in lines]}")
    campaign.figures["outcomes unknown: killed before the reply to tools/call"] = unknown


def _judge_runs(campaign: Campaign, evidence: Evidence) -> None:
    windows = Counter[str]()
    for intent, runs in evidence.runs.items():
        lines = evidence.of_intent.get(intent, [])
        keyed = any(line.keyed for _, line in lines)
        for one, again in pairwise(runs):
            name = _window(evidence, intent, one, again)
            if name is None or keyed:
                said = [(life, line.what, round(line.at, 3), line.text) for life, line in lines]
                campaign.breach(
                    TWICE,
                    f"{intent} by bridge {one.life} at {one.at:.3f} (ended "
                    f"{evidence.ended_at(one.life):.3f}, task {one.task_id}), "
                    f"and by bridge {again.life} at {again.at:.3f}: {said}",
                )
            else:
                windows[name] += 1
    for name in WINDOWS:
        campaign.figures[f"run again: {name}"] = windows[name]


WINDOWS: Final = (
    "killed before the server had made a task, or its reply was read",
    "the host was killed with the result in its pipe",
    "the host gave up as the result was written",
)


def _window(evidence: Evidence, intent: str, one: Request, again: Request) -> str | None:
    """The window in which a call may run again; ``None`` if there was none."""
    is_committed = one.task_id is not None and one.task_id in evidence.committed
    if not is_committed and evidence.ended_at(one.life) < again.at:
        return WINDOWS[0]
    had = [made for made in evidence.made.get(intent, ()) if one.at <= made.at < again.at]
    lines = evidence.of_intent.get(intent, [])
    for result in had:
        host = (result.life or 0) // BRIDGES_A_LIFE
        until = result.at + NOTED_S
        if result.at < evidence.hosts_killed_at.get(host, math.inf) < min(until, again.at):
            return WINDOWS[1]
        if any(
            life == host and line.what == "given up" and result.at < line.at < min(until, again.at)
            for life, line in lines
        ):
            return WINDOWS[2]
    return None


def _judge_answers(campaign: Campaign, evidence: Evidence) -> None:
    persons = {line.text for _, line in evidence.lines if line.what in ("answered", "giving")}
    sent: defaultdict[tuple[str | None, str], set[str]] = defaultdict(set)
    for request in evidence.requests:
        for key, answer in request.answers.items():
            words = {str(said) for said in (answer.get("content") or {"": str(answer)}).values()}
            sent[request.subject, key] |= words
            for one in words - persons:
                campaign.breach(BY_NOBODY, f"{one!r} by bridge {request.life} at {request.at:.3f}")
    for (subject, key), said in sent.items():
        if len(said) > 1:
            campaign.breach(DIFFER, f"{key!r} of {subject}: {said}")
    campaign.figures["questions answered"] = len(sent)


def _judge_foreign(campaign: Campaign, evidence: Evidence) -> None:
    promised = {
        line.text: evidence.kind_of[life][1] for life, line in evidence.lines if line.what == "promised"
    }
    for life, line in evidence.lines:
        if (
            line.what == "listed"
            and promised.get(line.text, evidence.kind_of[life][1]) != evidence.kind_of[life][1]
        ):
            campaign.breach(FOREIGN, f"life {life} was shown {line.text} at {line.at:.3f}")
    for intent, lines in evidence.of_intent.items():
        made = {one.made for one in evidence.made.get(intent, ())}
        got = {line.made for _, line in lines if line.what == "delivered"}
        if not got <= made:
            campaign.breach(FOREIGN, f"{intent} got {got}, and the server made {made}")
