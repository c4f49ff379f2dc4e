"""What did not hold in a campaign, and what happened in a window that the guides name.

Whatever is early or comes twice is found in the log of the server, whose requests say which life sent them
and when, and in the logs of the replicas. What they have in common with the disturbances tells the reason.

**The window.** A process can be stopped between its look at its own lease and the send that follows. So
within ``WINDOW_S`` after a process was woken, prompts and first polls of a few calls are counted apart, as is
a poll that was sent before its process was stopped or killed and arrived after that. A prompt may stand for
``WINDOW_S`` longer than its owner's lease, and be put so long after it was answered from outside. An
outcome may be handed out by a look that took it before it was acknowledged. Nothing else is allowed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from ..lives import takeovers
from ..outcome import Campaign
from ..torture.evidence import POLL_INTERVAL_MS, Line, Request
from .evidence import Disturbance, Evidence
from .fleet import REPLICAS

__all__ = ["judge"]

EARLY_S: Final = 0.01
"""By so much a poll may seem to be early, since times are those of arrival."""

ELSEWHERE_S: Final = 0.05
"""By so much more, if another process sent the one before: its lease has run out by a clock that both read,
or it has cut a poll off to stop."""

WINDOW_S: Final = 0.25
"""Within so many seconds a process that is woken has sent what it had looked up, and one whose lease has run
out has withdrawn its prompts."""

NOTED_S: Final = 1.5
"""Within so many seconds an answer, or a delivery, is in the journal, unless something disturbs that."""

AWAY_S: Final = 4.0
"""Within so many seconds after a disturbance the journal is in use again."""

STRAYS: Final = 3
"""So many calls may be between their look and their send as a process is stopped."""

LARGEST_SHARE: Final = 0.2
"""By so much of the mean a replica's share may differ from it."""

DETAIL: Final = "— "
"""Begins the name of a figure that says what others have to do with."""

ALONE: Final = 3
"""Leases within which another replica polls a task whose owner has stopped to."""


def judge(evidence: Evidence) -> Campaign:
    """Compare what happened with what may happen."""
    campaign, case = Campaign(), _Case(evidence)
    done = Counter(one.what.partition(":")[0] for one in evidence.disturbances)
    campaign.figures |= {f"disturbances: {what}": times for what, times in done.items()}
    for judge_one in (
        _calls,
        _answers,
        _polls,
        _prompts,
        _outcomes,
        _again,
        _left_alone,
        _takeovers,
        _shares,
        _errors,
    ):
        judge_one(campaign, case)
    details = {name: number for name, number in campaign.figures.items() if name.startswith(DETAIL)}
    campaign.figures = {name: n for name, n in campaign.figures.items() if name not in details} | details
    return campaign


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A question before a person."""

    life: int
    at: float
    until: float


class _Case:
    """Evidence, in the order in which it is looked at."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.lines = evidence.lines
        self.created = {one.task_id: one.intent for one in evidence.requests if one.method == "tools/call"}
        self.polls: defaultdict[str | None, list[Request]] = defaultdict(list)
        for one in evidence.requests:
            if one.method == "tasks/get":
                self.polls[one.task_id].append(one)

    def since(self, at: float) -> str:
        """A moment in words."""
        return f"at {at - self.evidence.began:.2f} s"

    def reasons(self, at: float, *lives: int | None) -> list[str]:
        """What was done to these replicas at a moment, or last if nothing was; of twins, that they are."""
        if self.are_twins(*lives):
            return ["twins"]
        concerned = [one for one in self.evidence.disturbances if one.at <= at and one.concerns(*lives)]
        under_way = [one for one in concerned if at <= one.until]
        latest = max(concerned, key=lambda one: one.at, default=None)
        reasons = [one.what for one in under_way]
        if not reasons and latest is not None:
            reasons = [f"after {latest.what}"]
        return reasons

    def are_twins(self, *lives: int | None) -> bool:
        """Whether two replicas are on equal hosts."""
        return len({*lives} & {*self.evidence.twins}) > 1

    def told(self, at: float, *lives: int | None) -> str:
        """The disturbances of a moment in words, for whoever traces it."""
        found = [
            one
            for one in self.evidence.disturbances
            if one.concerns(*lives) and one.at <= at <= one.until + 2 * self.evidence.lease_s
        ]
        words = [
            f"{one.what} {one.lives or 'all'} {one.at - self.evidence.began:.2f}"
            f"-{one.until - self.evidence.began:.2f}"
            for one in found
        ]
        if self.are_twins(*lives):
            words.append("both on equal hosts")
        return "; ".join(words) or "undisturbed"

    # ── stopped processes ─────────────────────────────────────────────────────────────────────

    def stops(self, life: int | None) -> Iterator[Disturbance]:
        """When a process did nothing."""
        return (one for one in self.evidence.disturbances if one.stops_process and one.concerns(life))

    def just_woken(self, life: int | None, at: float) -> Disturbance | None:
        """The stop of a process that was woken a moment ago."""
        return next((one for one in self.stops(life) if one.until <= at <= one.until + WINDOW_S), None)

    def on_the_wire(self, poll: Request) -> bool:
        """Whether a process was stopped or killed between a poll's sending and its arrival."""
        if poll.sent_at is None or poll.life is None:
            return False
        ends = [one.at for one in self.stops(poll.life)]
        ends += [at for life, at in self.evidence.killed_at.items() if life == poll.life]
        return any(poll.sent_at <= at <= poll.at for at in ends)

    def awake_s(self, prompt: _Prompt, since: float, until: float) -> list[tuple[float, float]]:
        """The times at which a prompt stands in a process that does something, but for just after a stop."""
        spans = [(max(prompt.at, since), min(prompt.until, until))]
        for stop in self.stops(prompt.life):
            awake = stop.until + WINDOW_S
            spans = [
                part
                for start, end in spans
                for part in ((start, min(end, stop.at)), (max(start, awake), end))
            ]
        return [(start, end) for start, end in spans if start < end]

    # ── what the journal can know ─────────────────────────────────────────────────────────────

    def noted_by(self, at: float, life: int) -> float:
        """By when something is in the journal that happened then, in this process."""
        until = at + NOTED_S
        for one in self.evidence.disturbances:
            if one.concerns(life) and one.at <= until and at <= one.until + AWAY_S:
                until = max(until, one.until + AWAY_S)
        return until

    def disturbed(self, life: int, since: float, until: float) -> bool:
        """Whether a replica was disturbed in a time, so that others may take over what it has."""
        return any(
            one.concerns(life) and one.at <= until and since <= one.until + self.evidence.lease_s
            for one in self.evidence.disturbances
        )

    @property
    def prompts(self) -> dict[str, list[_Prompt]]:
        """Of each question, in the order of time."""
        found: defaultdict[str, list[_Prompt]] = defaultdict(list)
        ends: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
        for life, line in self.lines:
            if line.what in ("answered", "withdrawn"):
                ends[life, str(line.question)].append(line.at)
        for life, line in self.lines:
            if line.what == "asked":
                question = str(line.question)
                ended_at = self.evidence.ended_at.get(life, math.inf)
                until = min([at for at in ends[life, question] if at >= line.at], default=ended_at)
                found[question].append(_Prompt(life, line.at, until))
        return found


class _Count:
    """A figure that must be 0, beside how often it was in the window, and what it had to do with."""

    def __init__(self, campaign: Campaign, case: _Case, name: str) -> None:
        self._campaign, self._case, self._name = campaign, case, name
        campaign.expect_none(name)

    def breach(self, sentence: str, at: float, *lives: int | None) -> None:
        case = self._case
        self._campaign.breach(self._name, f"{sentence} {case.since(at)}. {case.told(at, *lives)}")
        for reason in case.reasons(at, *lives):
            self._add(f"{DETAIL}{self._name}: {reason}")

    def in_window(self) -> None:
        self._add(f"{self._name}: in the window")

    def _add(self, name: str) -> None:
        self._campaign.figures[name] = self._campaign.figures.get(name, 0) + 1


# ── what the server has seen ──────────────────────────────────────────────────────────────────


def _calls(campaign: Campaign, case: _Case) -> None:
    """Each tool is called once, and each task finished."""
    calls, undone = "tools called twice, or never", "tasks that nobody finished"
    late = "replicas that had not stopped after three times outage_s"
    campaign.expect_none(calls, undone, late)
    ran = Counter(one.intent for one in case.evidence.requests if one.method == "tools/call")
    for number in range(case.evidence.tasks):
        if (times := ran[f"call-{number}"]) != 1:
            campaign.breach(calls, f"call-{number} was called {times} times")
    delivered = {line.intent for _, line in case.lines if line.what == "delivered"}
    for intent in ran.keys() - delivered:
        campaign.breach(undone, f"{intent} was never delivered")
    if case.evidence.unfinished:
        campaign.breach(undone, f"{case.evidence.unfinished} records are unfinished")
    for life in case.evidence.late_to_stop:
        campaign.breach(late, f"life {life} was told to stop, and had not after three times outage_s")
    campaign.figures["tasks finished"] = len(delivered)
    campaign.figures["polls"] = sum(map(len, case.polls.values()))


def _answers(campaign: Campaign, case: _Case) -> None:
    """A question has one answer. Who answers from outside is told that the answer counts if it was sent."""
    two, shown = "questions with two answers", "answered questions shown again"
    told = "answers from outside that count and are not sent, or the reverse"
    campaign.expect_none(two, told, shown)
    sent: defaultdict[str | None, set[str]] = defaultdict(set)
    for one in case.evidence.requests:
        for answer in one.answers.values():
            sent[case.created.get(one.task_id)].add(answer["content"]["name"])
    for intent, given in sent.items():
        if len(given) > 1:
            campaign.breach(two, f"{intent} was answered {given}")
    campaign.figures["answers from outside that count"] = sum(line.what == "given" for _, line in case.lines)
    for life, line in case.lines:
        counts = {"given": True, "came second": False, "came late": False}.get(line.what)
        if line.what == "shown again":
            campaign.breach(shown, f"{line.question} was shown again to {life} {case.since(line.at)}")
        elif counts is not None and counts != (line.text in sent[line.intent]):
            sentence = f"{line.question}: {line.text!r} {line.what}, and {sent[line.intent]} was sent"
            campaign.breach(told, f"{sentence} {case.since(line.at)}. {case.told(line.at)}")


def _polls(campaign: Campaign, case: _Case) -> None:
    """A task is polled no sooner than its hint says after the last poll of it, by any replica."""
    count = _Count(campaign, case, "early polls")
    strays = _strays(case)
    for task_id, polls in case.polls.items():
        for before, after in pairwise(polls):
            if before.sent_at is None or after.sent_at is None:
                continue  # a host's own client does not say when it has sent a poll that is under way
            same = before.life == after.life
            hint_s = (before.poll_interval_ms or POLL_INTERVAL_MS) / 1000
            if _gap_s(before, after) >= hint_s - (EARLY_S if same else EARLY_S + ELSEWHERE_S):
                continue
            if same and not before.well_answered:
                continue
            if id(before) in strays or id(after) in strays:
                count.in_window()
                continue
            count.breach(
                f"{case.created.get(task_id)}: polled by {after.life} {after.at - before.at:.3f} s after "
                f"{before.life}, of {hint_s:.2f} s,",
                after.at,
                before.life,
                after.life,
            )


def _gap_s(before: Request, after: Request) -> float:
    """The time between two polls. A busy server may read the first one late, but not before it was sent."""
    return max(after.at - before.at, _sent_at(after) - _sent_at(before))


def _strays(case: _Case) -> set[int]:
    """The polls that were under way as their process was stopped: on the wire, or about to be sent."""
    strays = set[int]()
    after_stop: defaultdict[tuple[int | None, float], set[str | None]] = defaultdict(set)
    for poll in sorted((one for polls in case.polls.values() for one in polls), key=_sent_at):
        if case.on_the_wire(poll):
            strays.add(id(poll))
        elif stop := case.just_woken(poll.life, _sent_at(poll)):
            tasks = after_stop[poll.life, stop.at]
            if poll.task_id not in tasks and len(tasks) < STRAYS:
                tasks.add(poll.task_id)
                strays.add(id(poll))
    return strays


def _sent_at(poll: Request) -> float:
    return poll.at if poll.sent_at is None else poll.sent_at


def _left_alone(campaign: Campaign, case: _Case) -> None:
    """A task goes on to be polled, whatever becomes of its owner."""
    lease_s = case.evidence.lease_s
    count = _Count(campaign, case, f"tasks that nobody polled for more than {ALONE} leases")
    for task_id, polls in case.polls.items():
        for before, after in pairwise(poll for poll in polls if poll.life):
            allowed_s = ALONE * lease_s + _lasted_s(case, before.at, after.at, all_only=True)
            if after.at - before.at > allowed_s:
                count.breach(
                    f"{case.created.get(task_id)}: polled by {after.life} {after.at - before.at:.1f} s after "
                    f"{before.life}, of {allowed_s:.1f} s,",
                    before.at,
                    before.life,
                )


# ── persons ───────────────────────────────────────────────────────────────────────────────────


def _prompts(campaign: Campaign, case: _Case) -> None:
    """A question stands before one person at a time, and before nobody once it has an answer."""
    twice = _Count(campaign, case, "questions put to two persons at a time")
    late = _Count(campaign, case, "questions put to somebody after the answer was committed")
    committed_at = {line.intent: line.at for _, line in case.lines if line.what == "given"}
    for one in case.evidence.requests:
        if one.answers:
            intent = case.created.get(one.task_id)
            committed_at[intent] = min(one.at, committed_at.get(intent, math.inf))
    for question, prompts in case.prompts.items():
        intent = question.partition(":")[0]
        for number, prompt in enumerate(prompts):
            late_s = prompt.at - committed_at.get(intent, math.inf)
            if late_s > 0:
                if late_s <= WINDOW_S or case.just_woken(prompt.life, prompt.at):
                    late.in_window()
                else:
                    late.breach(f"{question} was put to {prompt.life}", prompt.at, prompt.life)
            for other in prompts[:number]:
                both_s = _overlap_s(case, other, prompt)
                if both_s > WINDOW_S:
                    twice.breach(
                        f"{question} stood before {other.life} and {prompt.life} for {both_s:.2f} s",
                        prompt.at,
                        other.life,
                        prompt.life,
                    )
                    break
                if both_s > 0:
                    twice.in_window()
                    break


def _overlap_s(case: _Case, one: _Prompt, other: _Prompt) -> float:
    """For how long both stand, in processes that could withdraw theirs."""
    since, until = max(one.at, other.at), min(one.until, other.until)
    if since >= until:
        return 0.0
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in case.awake_s(one, since, until)
        for other_start, other_end in case.awake_s(other, since, until)
    )


# ── hosts ─────────────────────────────────────────────────────────────────────────────────────


def _outcomes(campaign: Campaign, case: _Case) -> None:
    """An outcome that was acknowledged is handed out no more. A host that has its handle still gets it.

    It is in the window if a look took it just before it was acknowledged, and went on to hand it out.
    """
    count = _Count(campaign, case, "acknowledged outcomes that were handed out again")
    still = 0
    acknowledged: dict[str | None, tuple[float, int]] = {}
    looked: dict[int, float] = {}
    adopted: dict[tuple[int, str | None], tuple[float, float]] = {}
    errors = Counter[str]()
    for life, line in case.lines:
        match line.what:
            case "acknowledged":
                acknowledged.setdefault(line.intent, (line.at, life))
            case "looked":
                looked[life] = line.at
            case "resumed":
                adopted[life, line.task_id] = looked.get(life, line.at), line.at
            case "delivered" if line.intent in acknowledged:
                at, first = acknowledged[line.intent]
                taken_at, adopted_at = adopted.get((life, line.task_id), (line.at, line.at))
                was_stopped = any(one.at < adopted_at and taken_at < one.until for one in case.stops(life))
                if taken_at <= at + WINDOW_S and at < adopted_at and not was_stopped:
                    count.in_window()
                elif adopted_at > at:
                    sentence = f"{line.intent}: acknowledged by {first} {case.since(at)}, and given to {life}"
                    count.breach(sentence, line.at, life, first)
                else:
                    still += 1
            case "lost":
                errors[line.text.partition("(")[0]] += 1
            case _:
                pass
    campaign.figures["acknowledged outcomes that a host got which had adopted the call before"] = still
    campaign.figures |= {f"{name} told to hosts": times for name, times in errors.items()}


def _again(campaign: Campaign, case: _Case) -> None:
    """A question, or an outcome, comes again only if its owner was disturbed before it was noted.

    Or if one of the two hosts that get an outcome had adopted the call, and was disturbed before the end: it
    follows the call, and each handle of a call gets the outcome.
    """
    answered_at = {(life, line.question): line.at for life, line in case.lines if line.what == "answered"}
    for what, name in (("asked", "questions asked again"), ("delivered", "outcomes delivered again")):
        count = _Count(campaign, case, f"{name}, and nobody was disturbed")
        had: dict[str | None, tuple[int, float, float]] = {}
        adopted: dict[tuple[int, str | None], float] = {}
        again = 0
        for life, line in case.lines:
            if line.what == "resumed":
                adopted[life, line.task_id] = line.at
            if line.what != what:
                continue
            if line.intent in had:
                before, since, noted_by = had[line.intent]
                had_before = what == "delivered" and any(
                    case.disturbed(one, adopted.get((one, line.task_id), line.at), since)
                    for one in (before, life)
                )
                if had_before or case.disturbed(before, since, min(noted_by, line.at)):
                    again += 1
                else:
                    count.breach(f"{line.intent} was {what} by {life} after {before}", line.at, before, life)
            # An answer may be under way for as long as somebody thinks.
            done_at = answered_at.get((life, line.question), math.inf) if what == "asked" else line.at
            had[line.intent] = life, line.at, case.noted_by(done_at, life) if done_at < math.inf else done_at
        campaign.figures[f"{name}, since an owner was disturbed before it was noted"] = again


def _errors(campaign: Campaign, case: _Case) -> None:
    """Nothing fails where nothing keeps anybody from the journal."""
    if not case.evidence.on_one_machine:
        return
    errors = "errors that hosts were told"
    campaign.expect_none(errors)
    for life, line in case.lines:
        if line.what in ("error", "lost"):
            campaign.breach(errors, f"life {life}: {line.text}")


# ── the fleet ─────────────────────────────────────────────────────────────────────────────────


def _takeovers(campaign: Campaign, case: _Case) -> None:
    """A call of a killed replica is with another within two leases, if nothing else is disturbed."""
    lease_s = case.evidence.lease_s
    count = _Count(campaign, case, "takeovers from the dead later than within two leases")
    undisturbed = list[float]()
    for at, taken_at in takeovers(case.evidence.killed_at, case.lines):
        lasted_s = _lasted_s(case, at, taken_at, all_only=False)
        if not lasted_s:
            undisturbed.append(taken_at - at)
        if taken_at - at > 2 * lease_s + lasted_s:
            count.breach(f"a takeover took {taken_at - at:.1f} s of {2 * lease_s + lasted_s:.1f} s", taken_at)
    campaign.figures["calls taken over from the dead, otherwise undisturbed"] = len(undisturbed)
    if undisturbed:
        campaign.figures["of these, median in leases"] = round(median(undisturbed) / lease_s, 2)
        campaign.figures["of these, longest in leases"] = round(max(undisturbed) / lease_s, 2)


def _lasted_s(case: _Case, since: float, until: float, *, all_only: bool) -> float:
    """For how long others were disturbed in a time, with a lease to come back from each."""
    return sum(
        min(one.until, until) - max(one.at, since) + case.evidence.lease_s
        for one in case.evidence.disturbances
        if one.at <= until and since <= one.until
        if not one.lives or (not all_only and one.what not in ("killed", "told to stop"))
    )


def _shares(campaign: Campaign, case: _Case) -> None:
    """While there is more to do than they take at once, and nobody is disturbed, all take up as much.

    That is from when the last of them has adopted its first call until the last call is adopted.
    """
    since = case.evidence.calm_since
    if since is None:
        return
    unfair = "shares that differ by more than 20 %"
    campaign.expect_none(unfair)
    adopted = list(_adopted(case.lines, since))
    first: dict[int, float] = {}
    for life, at in adopted:
        first.setdefault(life, at)
    if len(first) < REPLICAS:
        campaign.breach(unfair, f"only {len(first)} of {REPLICAS} took anything up")
        return
    shares = Counter(life for life, at in adopted if at >= max(first.values()))
    mean = fmean(shares.values())
    for number, life in enumerate(sorted(shares), 1):
        campaign.figures[f"share of replica {number} of 4, undisturbed"] = shares[life]
        if abs(shares[life] / mean - 1) > LARGEST_SHARE:
            campaign.breach(unfair, f"life {life} had {shares[life]}, and {mean:.0f} is the mean")


def _adopted(lines: Iterable[tuple[int, Line]], since: float) -> Iterator[tuple[int, float]]:
    return ((life, line.at) for life, line in lines if line.what == "resumed" and line.at >= since)
