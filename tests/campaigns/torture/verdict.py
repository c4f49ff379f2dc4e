"""What was promised, held against the evidence: figures, and sentences about what was broken.

What is documented as possible is counted; what is not is a breach.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from .evidence import Evidence, Life, Line, Request
from .figures import Verdict

__all__ = ["judge"]

TOLERANCE_S = 0.002
"""Seconds by which a poll may seem early: the two ends read different clocks of one machine."""

HEARD_S = 2.0
"""Seconds in which a process that drives a call has surely heard of an answer from outside."""

NOTED_S = 1.0
"""Seconds in which a process that lives on has surely noted that a result was delivered."""


def judge(evidence: Evidence) -> Verdict:
    """Hold the evidence of one round against the promises."""
    verdict = Verdict()
    case = _Case(evidence)
    verdict.count(killed=sum(life.killed_at is not None for life in evidence.lives))
    _judge_ends(case, verdict)
    _judge_calls(case, verdict)
    _judge_questions(case, verdict)
    _judge_answers(case, verdict)
    _judge_outside(case, verdict)
    _judge_deliveries(case, verdict)
    _judge_polls(case, verdict)
    verdict.breaches = [f"{evidence.scenario}: {sentence}" for sentence in verdict.breaches]
    return verdict


class _Case:
    """The evidence, in the order in which it is asked for."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.lives = {life.number: life for life in evidence.lives}
        self.requests = sorted(evidence.requests, key=lambda request: request.at)
        said = [(line, life) for life in evidence.lives for line in life.lines]
        self.said = sorted(said, key=lambda pair: pair[0].at)
        self.calls = [request for request in self.requests if request.method == "tools/call"]
        self.created = {
            request.task_id: request
            for request in self.calls
            if request.kind == "task" and request.task_id is not None
        }
        self.resends = self._by_intent("resend")
        self.deliveries = self._by_intent("delivered")
        self.unknown = self._by_intent("unknown")
        self.unheard = self._by_intent("lost")
        self.begun = self._by_intent("begun")
        self.outside = [(line, life) for life in evidence.others for line in life.lines]
        self.given = [_Given(line, self._giving(line)) for line, _ in self.outside if line.what == "given"]

    def _giving(self, given: Line) -> Line:
        return next(
            line
            for line, _ in self.outside
            if line.what == "giving" and (line.question_id, line.text) == (given.question_id, given.text)
        )

    def given_before(self, question: _Question, at: float) -> list[_Given]:
        """The answers from outside to a question that were told to count before a time."""
        return [
            one
            for one in self.given
            if one.line.question == question.words
            and one.line.at < at
            and (question.task_id is not None or self.run_of(one) == question.run)
        ]

    def run_of(self, given: _Given) -> int:
        """Which of the calls of a question it answers, if the call was sent again."""
        return len(self.runs(given.line.intent, before=given.giving.at))

    def sent_to(self, given: _Given) -> Iterator[tuple[Request, str]]:
        """What was sent to the question that an answer was given to, whoever gave it."""
        runs, run = self.runs(given.line.intent), self.run_of(given)
        since = runs[run - 1].at if run else -math.inf
        until = runs[run].at if run < len(runs) else math.inf
        for request in self.requests:
            intent = request.intent
            if intent is None and request.task_id in self.created:
                intent = self.created[request.task_id].intent
            if intent == given.line.intent and since <= request.at < until:
                for answer in request.answers.values():
                    for field, words in answer["content"].items():  # whose name the question ends with
                        if given.line.question == f"{intent}: {field}?":
                            yield request, words

    def lines(self, *what: str) -> list[tuple[Line, Life]]:
        """What the hosts wrote of some kinds, oldest first."""
        return [(line, life) for line, life in self.said if line.what in what]

    def runs(self, intent: str | None, before: float = math.inf) -> list[Request]:
        """The times that a ``tools/call`` came; its further rounds belong to it."""
        return [
            call
            for call in self.calls
            if call.intent == intent and call.request_state is None and call.at < before
        ]

    def answers_to(self, question: _Question, asked: Line, before: float) -> Iterator[Request]:
        """The requests that brought an answer. Each was committed before it was sent."""
        since = -math.inf
        if question.run > 1:
            since = self.runs(asked.intent)[question.run - 1].at
        for request in self.requests:
            about = (
                request.task_id == question.task_id
                if question.task_id is not None
                else request.intent == asked.intent and request.request_state is not None
            )
            if about and asked.key in request.answers and since <= request.at < before:
                yield request

    def ended_at(self, request: Request) -> float:
        """When the process that sent a request was killed; infinity if it was not."""
        life = self.lives.get(request.life) if request.life is not None else None
        return life.ended_at if life is not None else math.inf

    def _by_intent(self, what: str) -> dict[str, list[tuple[Line, Life]]]:
        found: dict[str, list[tuple[Line, Life]]] = defaultdict(list)
        for line, life in self.lines(what):
            assert line.intent is not None, f"{what} is about a call"
            found[line.intent].append((line, life))
        return found


def _judge_ends(case: _Case, verdict: Verdict) -> None:
    for sentence in case.evidence.complaints:
        verdict.breach("errors", f"the server complains: {sentence}")
    for life in case.evidence.lives:
        if life.trouble:
            verdict.breach("errors", f"life {life.number} {life.trouble}")
    for line, life in case.lines("error"):
        verdict.breach("errors", f"life {life.number}: {line.text}")
    for line, life in case.lines("left"):
        verdict.breach("left", f"after the end, life {life.number} still found: {line.text}")
    if not case.lines("done"):
        verdict.breach("errors", "the last process never came to its end")


# ── calls ──


def _judge_calls(case: _Case, verdict: Verdict) -> None:
    verdict.count(
        calls=len(case.begun),
        started=len(case.created),
        delivered=len(case.deliveries),
        given_up=len(case.lines("given up")),
        unknown=len(case.unknown),
        unknown_ran=sum(
            bool(case.runs(intent, before=said[0][0].at)) for intent, said in case.unknown.items()
        ),
        resent=len(case.resends),
    )
    for intent, begun in case.begun.items():
        keyed = begun[0][0].keyed
        runs = case.runs(intent)
        allowed = 1 + len(case.resends[intent]) if intent in case.resends else 1
        if len(runs) > allowed:
            verdict.breach(
                "ran_twice",
                f"tools/call of {intent} came {len(runs)} times, by lives {[run.life for run in runs]}, and "
                f"the host asked for {allowed}",
            )
        if keyed and intent not in case.deliveries and intent not in case.unknown:
            verdict.breach("lost", f"{intent} was begun, and came to no end that the host heard of")
        _judge_unknown(case, intent, verdict)
    for call, again in _rounds_again(case.calls):
        verdict.breach("ran_twice", f"one round of {call.intent} came at {call.at:.3f} and {again.at:.3f}")
    _judge_unkeyed(case, verdict)


def _judge_unknown(case: _Case, intent: str, verdict: Verdict) -> None:
    """That a reply was lost must be so, and what was known once stays known."""
    calls = [call for call in case.calls if call.intent == intent]
    broken_at = min((call.at for call in calls if not call.well_answered), default=math.inf)
    for line, life in case.unheard.get(intent, ()):
        if broken_at > line.at:
            verdict.breach("errors", f"life {life.number} got no reply for {intent}, which was well answered")
    delivered_at = min((line.at for line, _ in case.deliveries.get(intent, ())), default=math.inf)
    killed_at = min((life.ended_at for _, life in case.begun[intent]), default=math.inf)
    for line, life in case.unknown.get(intent, ()):
        if delivered_at < line.at:
            verdict.breach(
                "unfounded", f"{intent} was delivered, and unknown to life {life.number} after that"
            )
        elif min(broken_at, killed_at) > line.at:
            verdict.breach("unfounded", f"{intent} was unknown to life {life.number} at {line.at:.3f}")


def _rounds_again(calls: Sequence[Request]) -> Iterator[tuple[Request, Request]]:
    rounds: dict[str, list[Request]] = defaultdict(list)
    for call in calls:
        if call.request_state is not None:
            rounds[call.request_state].append(call)
    for same in rounds.values():
        yield from pairwise(same)


def _judge_unkeyed(case: _Case, verdict: Verdict) -> None:
    """A task whose reply arrived must come home. The host, or a request about it, shows that it did."""
    seen = {line.intent for line, _ in case.lines("task", "reached")}
    asked_about = {request.task_id for request in case.requests if request.method.startswith("tasks/")}
    for task_id, call in case.created.items():
        begun = case.begun.get(call.intent or "")
        if begun is None or begun[0][0].keyed or call.intent in case.deliveries:
            continue
        life = begun[0][1]
        if call.intent in seen or task_id in asked_about:
            verdict.breach("lost", f"the task of {call.intent} was known to life {life.number}")
        elif call.answered_at is not None and life.alive_at(call.answered_at + NOTED_S):
            verdict.breach("lost", f"the task of {call.intent}: life {life.number} lived on after its reply")
        else:
            verdict.count(unseen=1)


# ── questions ──


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One time that a question was before the host."""

    asked: Line
    life: Life
    answered_at: float | None
    put_off: bool
    until: float

    @property
    def at(self) -> float:
        return self.asked.at

    def __str__(self) -> str:
        return f"life {self.life.number} at {self.at:.3f}"


@dataclass(frozen=True, slots=True)
class _Given:
    """An answer from outside that was told to count."""

    line: Line
    giving: Line


@dataclass(frozen=True, slots=True)
class _Question:
    """What must be asked once.

    ``run`` tells the calls apart that asked it before they had a task: one that was sent again is a new one.
    """

    words: str | None
    task_id: str | None
    run: int = 0


def _prompts(case: _Case) -> dict[_Question, list[_Prompt]]:
    found: dict[_Question, list[_Prompt]] = defaultdict(list)
    for life in case.evidence.lives:
        for number, line in enumerate(life.lines):
            if line.what != "asked":
                continue
            end = next((later for later in life.lines[number + 1 :] if _ends(later, line)), None)
            answered_at = end.at if end is not None and end.what == "answered" else None
            until = end.at if end is not None else life.ended_at
            run = len(case.runs(line.intent, before=line.at)) if line.task_id is None else 0
            question = _Question(line.question, line.task_id, run)
            put_off = end is not None and end.what == "put off"
            found[question].append(_Prompt(line, life, answered_at, put_off, until))
    return {question: sorted(prompts, key=lambda prompt: prompt.at) for question, prompts in found.items()}


def _ends(line: Line, asked: Line) -> bool:
    about = (line.question, line.task_id) == (asked.question, asked.task_id)
    return about and line.client == asked.client and line.what in ("answered", "withdrawn", "put off")


def _judge_questions(case: _Case, verdict: Verdict) -> None:
    by_question = _prompts(case)
    for question, prompts in by_question.items():
        verdict.count(questions=1, asked_anew=replace(question, run=question.run - 1) in by_question)
        for one, other in combinations(prompts, 2):
            if other.at < one.until:
                verdict.breach(
                    "asked_at_once", f"{question.words!r} by {one}, until {one.until:.3f}, and by {other}"
                )
        verdict.count(put_off=sum(prompt.put_off for prompt in prompts))
        for number, prompt in enumerate(prompts):
            answered = [one for one in prompts[:number] if one.answered_at is not None]
            committed = _committed(case, question, prompt, answered) or _settled(
                case, question, prompts, number
            )
            if committed:
                verdict.breach("asked_twice", f"{question.words!r} by {prompt}: {committed}")
            elif answered:
                verdict.count(uncommitted=1)
            elif number:
                verdict.count(reopened=1)


def _committed(case: _Case, question: _Question, prompt: _Prompt, answered: Sequence[_Prompt]) -> str:
    """What shows that there was a committed answer when a question was asked; empty if nothing does."""
    left = case.given_before(question, math.inf)
    just_left = any(one.giving.at < prompt.at + HEARD_S and prompt.at < one.line.at + HEARD_S for one in left)
    if prompt.asked.committed and not just_left:
        return "the journal had an answer"
    for one in answered:
        assert one.answered_at is not None
        if any(
            line.what == "reached" and line.intent == one.asked.intent and line.at > one.answered_at
            for line in one.life.lines
        ):
            return f"life {one.life.number} was stopped after the commit of its answer"
        if one.life.alive_at(prompt.at):
            return f"life {one.life.number} answered at {one.answered_at:.3f} and was alive"
    for request in case.answers_to(question, prompt.asked, before=prompt.at):
        return f"life {request.life} had sent an answer, which came at {request.at:.3f}"
    return ""


def _settled(case: _Case, question: _Question, prompts: Sequence[_Prompt], number: int) -> str:
    """What shows that nobody had to be asked who was; empty if nothing does."""
    prompt = prompts[number]
    for given in case.given_before(question, prompt.at):
        began_at = prompt.life.lines[0].at
        if given.line.at < max(began_at, prompt.at - HEARD_S):
            return f"it was answered from outside at {given.line.at:.3f}, and life {prompt.life.number} knew"
    for one in prompts[:number]:
        asked = (one.life, one.asked.client) == (prompt.life, prompt.asked.client)
        resumed = any(line.what == "resuming" and one.at < line.at < prompt.at for line in one.life.lines)
        if asked and one.put_off and not resumed:
            return f"{one} has left it to others, and was not told to resume"
    return ""


def _judge_answers(case: _Case, verdict: Verdict) -> None:
    answers: dict[tuple[str | None, str], list[object]] = defaultdict(list)
    for request in case.requests:
        for key, answer in request.answers.items():
            payloads = answers[request.subject, key]
            if answer not in payloads:
                payloads.append(answer)
    for (subject, key), payloads in answers.items():
        if len(payloads) > 1:
            verdict.breach("answers_differ", f"{key!r} of {subject} got {payloads}")


def _judge_outside(case: _Case, verdict: Verdict) -> None:
    """Who was told that an answer counts has given the one that was sent; who was not was told why."""
    for life in case.evidence.others:
        if life.trouble:
            verdict.breach("errors", f"life {life.number}, which answers, {life.trouble}")
    for line, life in case.outside:
        match line.what:
            case "came second":
                verdict.count(given_at_once=1)
                if not _others_answered(case, line):
                    verdict.breach("unanswerable", f"{line.question!r} at {line.at:.3f}: nobody had answered")
            case "came late":
                verdict.count(given_at_once=1)
            case "shown again":
                verdict.breach(
                    "asked_twice", f"{line.question!r} was shown to life {life.number} at {line.at:.3f}"
                )
            case "error":
                verdict.breach("unanswerable", f"{line.question!r} by life {life.number}: {line.text}")
    given: dict[str | None, _Given] = {}
    for one in case.given:
        verdict.count(given=1)
        what, intent = f"{one.line.text!r} to {one.line.question!r}", one.line.intent
        other = given.setdefault(one.line.question_id, one)
        sent = list(case.sent_to(one))
        wrong = [(request, words) for request, words in sent if words != one.line.text]
        if other is not one:
            verdict.breach("untrue", f"{what} and {other.line.text!r} were both told to count")
        elif wrong:
            request, words = wrong[0]
            verdict.breach("untrue", f"{what} was told to count, and life {request.life} sent {words!r}")
        elif not sent and intent in case.deliveries and case.run_of(one) == len(case.runs(intent)):
            verdict.breach("untrue", f"{what} was told to count, and was never sent")
        senders = [case.lives[request.life] for request, _ in sent[:1] if request.life in case.lives]
        verdict.count(inherited=any(life.lines and one.line.at < life.lines[0].at for life in senders))


def _others_answered(case: _Case, late: Line) -> bool:
    """Whether a callback, or somebody else outside, had begun to answer a question."""
    given = [
        line
        for line, _ in case.outside
        if line.what == "giving" and line.question_id == late.question_id and line.text != late.text
    ]
    callbacks = [line for line, _ in case.lines("answered") if line.question == late.question]
    return any(line.at < late.at for line in (*given, *callbacks))


# ── results ──


def _judge_deliveries(case: _Case, verdict: Verdict) -> None:
    completed: dict[str, set[str]] = defaultdict(set)
    for request in case.requests:
        intent = request.intent
        if intent is None and request.task_id in case.created:
            intent = case.created[request.task_id].intent
        if intent is not None and request.made is not None:
            completed[intent].add(request.made)
    for intent, deliveries in case.deliveries.items():
        first = deliveries[0][0]
        keyed = intent in case.begun and case.begun[intent][0][0].keyed
        for line, life in deliveries:
            if line.made not in completed[intent]:
                verdict.breach("foreign", f"life {life.number} got {line.made} for {intent}")
        for line, life in deliveries[1:]:
            verdict.count(replayed=keyed and line.by == "key")
            if line.made != first.made:
                verdict.breach(
                    "replays_differ", f"life {life.number} got {line.made} for {intent}, and not {first.made}"
                )
        _judge_redeliveries(intent, deliveries, verdict)


def _judge_redeliveries(intent: str, deliveries: Sequence[tuple[Line, Life]], verdict: Verdict) -> None:
    for line, life in deliveries:
        if line.by != "resume":
            continue
        began, ended = _resume_of(line, life)
        earlier = [pair for pair in deliveries if pair[0].at < began and pair[1] is not life]
        if not earlier:
            continue
        verdict.count(resumed_again=1)
        for had, by in earlier:
            if by.alive_at(ended) and had.at + NOTED_S < began:
                verdict.breach(
                    "delivered_twice",
                    f"life {by.number} got {intent} at {had.at:.3f} and lived on; life {life.number}'s "
                    f"resume() of {began:.3f} returned it again",
                )


def _resume_of(delivered: Line, life: Life) -> tuple[float, float]:
    """When the ``resume()`` began, and when it returned, that a result came of at the latest."""
    before = [line for line in life.lines if line.at <= delivered.at]
    began = max((line.at for line in before if line.what == "resuming"), default=-math.inf)
    ended = max((line.at for line in before if line.what == "resumed"), default=-math.inf)
    return began, ended


# ── polls ──


def _judge_polls(case: _Case, verdict: Verdict) -> None:
    by_task: dict[str, list[Request]] = defaultdict(list)
    for request in case.requests:
        if request.task_id is not None and request.method in ("tools/call", "tasks/get"):
            by_task[request.task_id].append(request)
    for looks in by_task.values():
        hint_s = 0.0
        bounds: list[tuple[float, float]] = []  # when it was said, and until when
        for look in looks:
            if look.method == "tasks/get":
                verdict.count(polls=1)
                _judge_poll(look, bounds, verdict)
            if look.poll_interval_ms is not None:
                hint_s = look.poll_interval_ms / 1000
            # Who was dead by then has not heard it, and who took over cannot know of it.
            ended_at = case.ended_at(look)
            bounds.append((look.at, min(look.at, ended_at) + hint_s))
            if look.answered_at is not None:
                bounds.append((look.answered_at, min(look.answered_at, ended_at) + hint_s))


def _judge_poll(poll: Request, bounds: Sequence[tuple[float, float]], verdict: Verdict) -> None:
    due = max((until for said_at, until in bounds if said_at < poll.at), default=-math.inf)
    if poll.at < due - TOLERANCE_S:
        verdict.breach(
            "early",
            f"life {poll.life} polled {poll.task_id} at {poll.at:.3f}, {due - poll.at:.3f} s too early",
        )
