"""What became of a voyage, against what was promised."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from .host import ALIKE, CALLS, RELATED, SAYS, Way, mark, thought
from .proxy import Lane, Look, Passed
from .received import SEEN_S, answered_late, unserved
from .weather import BREAKS, DENIALS, FAIR

__all__ = ["Noted", "Voyage", "breaches", "hidden", "read_log", "unheard"]

JOURNALED_S: Final = 1.0
"""Seconds after which what the server has asked is in the journal, however busy the machine is."""

LATE_S: Final = 0.04
"""Seconds after which a request is seen that has come, on a busy machine."""

READ_S: Final = 1.0
"""Seconds that the SDK's session may take to return a result that it has read."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What a process wrote down, at ``time.monotonic()`` seconds."""

    at: float
    life: int
    event: str
    call: int
    """Which of the calls; -1 where it is a task's, as the text says."""

    text: str


@dataclass(slots=True, kw_only=True)
class Voyage:
    """Some calls, from their beginning to their end, over several lives."""

    seed: int
    kind: str
    way: Way
    calls: tuple[str, ...]
    lane: Lane
    interval_s: float = 0.0
    kills: list[float] = field(default_factory=list)
    """When a process was killed."""

    died: list[tuple[int, int | None]] = field(default_factory=list)
    """The lives that ended with an error that is none of ours."""

    cancels: bool
    ended: bool = False
    """Whether the last process came to an end."""

    log: list[Noted] = field(default_factory=list)

    def told(self) -> str:
        """All of it, line by line."""
        lines = [(one.at, f"  {one.life} {one.event} {one.call} {one.text}") for one in self.log]
        lines += [(at, "  killed") for at in self.kills]
        for one in self.lane.passed:
            shown = json.dumps(one.message.get("params") or one.message.get("result") or one.message)
            whose = f"{one.life} > {one.method or 'reply'} in {(one.session_id or 'none')[:4]}"
            what = f"{whose} id={one.message.get('id')!r} {shown[:110]}"
            lines.append((one.at, f"{what} · {one.fate.what} {one.fate.seconds:.2f}"))
            lines += [
                (look.at, f"  < {look.message['method']} id={look.message['id']!r}, heard: {look.heard}")
                for look in (*one.asks, *one.looks)
            ]
        begun = min(at for at, _ in lines)
        return "\n".join(f"{at - begun:8.3f} {line}" for at, line in sorted(lines))


def read_log(path: Path) -> list[Noted]:
    """What the processes wrote; the last line of one that was killed may be half of one."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Noted(**json.loads(line)) for line in lines if line.endswith("}")]


def breaches(voyage: Voyage) -> Iterator[str]:
    """The promises that were not kept."""
    for life, code in voyage.died:
        yield f"life {life} died of itself, with exit code {code}"
    if not voyage.ended and not unheard(voyage) and not hidden(voyage):
        yield "hangs"
    yield from _ended_wrongly(voyage)
    yield from _lost(voyage)
    yield from _asked_again(voyage)
    yield from _mixed_up(voyage)
    yield from _answered_late(voyage)
    yield from _polled_early(voyage)


def _ended_wrongly(voyage: Voyage) -> Iterator[str]:
    marks: list[Noted] = []
    told = Counter[str]()
    for one in voyage.log:
        if one.event == "created":
            marks.append(one)
        if one.event == "resumed":
            tool, whose, text = one.text.split(" ", 2)
            wanted = {form.format(whose) for name, _, form in CALLS.values() if name == tool}
        elif one.event in ("result", "error"):
            form, text = CALLS[voyage.calls[one.call]][2], one.text
            wanted = {form.format(mark.text) for mark in marks if mark.call in (one.call, -1)}
            is_known = form.format("") != text and unnumbered(text) in wanted
            told[text] += voyage.way == "transport" and is_known
        elif one.event == "down":
            wanted, text = set[str](), one.text
        else:
            continue
        right = one.event in ("result", "resumed") and unnumbered(text) in wanted
        if not right and not _excused(voyage, one, text):
            yield f"{one.event} of {one.call}: {one.text}"
    yield from (f"{times} calls end with {text}" for text, times in told.items() if times > 1)


def _excused(voyage: Voyage, one: Noted, text: str) -> bool:
    """Whether a call may have no result, or one that somebody else had."""
    cancelled = voyage.cancels and one.call == 0 and text.startswith("TaskCancelledError")
    forgotten = voyage.lane.forgets_at < one.at
    given_up = _given_up(voyage.lane, one.at)
    # Where tasks are known in any session, the present one is asked as well: both have to be denied.
    gone_with_it = len(given_up) > 1 if voyage.kind == "anywhere" else forgotten or bool(given_up)
    lost = gone_with_it and text.startswith("TaskNotFoundError")
    # What a kill between the call and the commit of its reply leaves is reported.
    seen = [noted for noted in voyage.log if noted.event == "created" and noted.call == one.call]
    created = [noted for noted in seen if noted.at < one.at]  # in a later life it may be found after all
    unseen = not created and text.startswith("OutcomeUnknownError")
    # What is run for a server is known in one session only, and the server tells of it in its result.
    of_ours = "result_error" in text or "Failed to retrieve task" in text
    lost |= (forgotten or bool(_denied(voyage.lane, one.at))) and of_ours and "Task not found" in text
    # mcp 1.30 ends the session in which a tasks/result is cancelled in the instant in which its task ends.
    ends_session = voyage.kind == "python" and any(at < one.at for at in _taken_back(voyage.lane).values())
    lost |= ends_session and text.startswith("TaskNotFoundError")
    if cancelled or lost or (voyage.kills and unseen):
        return True
    way = voyage.way if one.event != "resumed" else "resume"
    if way != "transport":
        return False
    # A session of the SDK's, and with it what is bound to it, ends with what it cannot send.
    broke = any(
        passed.fate.what in BREAKS and passed.life <= one.life and passed.at < one.at
        for passed in voyage.lane.passed
    )
    another = one.life > 1  # which has had another session
    gone = text.startswith(("ConnectionLostError", "TaskNotFoundError", "MCPError", "OutcomeUnknownError"))
    return ((broke or forgotten) and gone) or (broke and one.event == "down") or (another and gone)


def _lost(voyage: Voyage) -> Iterator[str]:
    """Tasks of which nobody was told in the end, where no call of a later life would have them again."""
    if voyage.way != "transport" or not voyage.ended:
        return
    ends = [one for one in voyage.log if one.event in ("result", "resumed", "error")]
    told = " ".join(one.text for one in ends if one.event != "error")
    untold = [one.text for one in voyage.log if one.event == "created" and one.text not in told]
    unmarked = sum(one.event == "error" or one.text == "rested" for one in ends)
    # A result is the session's once that has read it, which then asks for the tools before it returns. And an
    # answer may bring the result at once.
    unmarked += sum(
        ((one.method == "tools/list" and isinstance(one.message.get("id"), int)) or not one.method)
        and one.at < kill < one.at + READ_S
        for one in voyage.lane.passed
        for kill in [*voyage.kills, *(end.at for end in voyage.log if end.event == "down")]
    )
    if len(untold) > unmarked:
        yield f"nobody was told how these ended: {untold}"


def unheard(voyage: Voyage) -> bool:
    """Whether the server has asked what nobody could have journaled or replied to: it waits for ever then."""
    asks = [ask for one in voyage.lane.passed for ask in one.asks]
    # Nothing is in the journal before the task is, which a call is told of in each life.
    noted = {one.call: one.at for one in reversed(voyage.log) if one.event == "created"}.values()
    # What is stopped in the moment at which a question comes may not have journaled it yet.
    ends = [*voyage.kills, *(one.at for one in voyage.log if one.event in ("down", "stops", "closes"))]
    killed = any(
        ask.at - SEEN_S < end < max([ask.at, *(one for one in noted if one < end)]) + JOURNALED_S
        and not _put(voyage, ask, end)
        for ask in asks
        for end in ends
    )
    # No server of this generation asks it again.
    if killed or not all(ask.heard for ask in asks):
        return True
    if _came_too_late(voyage.lane):
        return True
    if _lost_twice(voyage.lane) or (voyage.kind == "anywhere" and _unanswerable(voyage.lane)):
        return True
    closed = [one.at for one in voyage.log if one.event == "closes"]
    return unserved(voyage.kind, voyage.lane.passed, [*voyage.kills, *closed])


def _taken_back(lane: Lane) -> dict[object, float]:
    """When which ``tasks/result`` was cancelled, by its ID."""
    results = {one.message.get("id") for one in lane.passed if one.method == "tasks/result"}
    cancelled = (one for one in lane.passed if one.method == "notifications/cancelled" and one.reached)
    named = {one.message["params"]["requestId"]: one.at for one in cancelled}
    return {request_id: at for request_id, at in named.items() if request_id in results}


def _came_too_late(lane: Lane) -> bool:
    """Whether the server has asked over a ``tasks/result`` in the instant in which that was cancelled."""
    taken_back = _taken_back(lane)
    return any(
        abs(taken_back.get(one.message.get("id"), -math.inf) - look.at) < LATE_S
        for one in lane.passed
        for look in (*one.asks, *one.looks)
    )


def _lost_twice(lane: Lane) -> bool:
    """Whether a reply of the client's was sent at least twice, and never reached the server."""
    sent: dict[tuple[str | None, object], list[bool]] = {}
    for one in lane.passed:
        if not one.method:
            sent.setdefault((one.session_id, one.message.get("id")), []).append(one.reached)
    return any(len(reached) > 1 and not any(reached) for reached in sent.values())


def _put(voyage: Voyage, ask: Look, end: float) -> bool:
    """Whether a question was put to the host by then, before which it is journaled."""
    params = ask.message["params"]
    what = thought(params["_meta"][RELATED]["taskId"], params.get("message", SAYS))
    if what.endswith(ALIKE):
        return _how_many_put(voyage, what, end) >= _how_many_asked(voyage, ask)
    return any(one.event == "asked" and one.text == what and ask.at < one.at < end for one in voyage.log)


def _how_many_put(voyage: Voyage, what: str, end: float) -> int:
    """How many of the questions that are alike were put to the host by then, in one life."""
    put = Counter[int]()
    for one in voyage.log:
        if one.at < end and unnumbered(one.text) == what:
            # What was taken away from whoever was before it is put up again.
            put[one.life] += (one.event == "asked") - (one.event == "withdrawn")
    return max(put.values(), default=0)


def _how_many_asked(voyage: Voyage, last: Look) -> int:
    """The number of a question among those that are alike."""
    params = last.message["params"]
    return sum(
        ask.at <= last.at
        and ask.message["params"].get("message") == params.get("message")
        and ask.message["params"]["_meta"][RELATED] == params["_meta"][RELATED]
        for one in voyage.lane.passed
        for ask in one.asks
    )


def _denied(lane: Lane, before: float) -> set[str | None]:
    """The sessions that were denied by then to a request about a task. The next one is asked as well."""
    return {
        one.session_id
        for one in lane.passed
        if one.method in ("tasks/get", "tasks/cancel") and one.fate.what in DENIALS and one.at < before
    }


def _given_up(lane: Lane, before: float) -> set[str | None]:
    """The sessions that were denied by then to two polls of a task in a row. The task is not found then."""
    polls: dict[tuple[str | None, str], list[bool]] = {}
    for one in lane.passed:
        denied = one.fate.what in DENIALS
        told = one.fate.what in FAIR and one.replied_at is not None  # else the client did not wait for it
        if one.method == "tasks/get" and one.at < before and (denied or told):
            polls.setdefault((one.session_id, one.message["params"]["taskId"]), []).append(denied)
    return {session_id for (session_id, _), denied in polls.items() if (True, True) in pairwise(denied)}


def _unanswerable(lane: Lane) -> bool:
    """Whether the server has asked something in a session that was lost before it had the answer."""
    end = lane.passed[-1].at
    gone = _denied(lane, end) | (lane.forgotten if lane.forgets_at < end else set())
    asked = {ask.message["id"] for one in lane.passed if one.session_id in gone for ask in one.asks}
    replied = {one.message.get("id") for one in lane.passed if not one.method and one.reached}
    return bool(asked - replied)


def hidden(voyage: Voyage) -> bool:
    """Whether the server may say that it works, though it waits for an answer that was lost on the way.

    Over a session of the SDK's nobody is told of that; and both servers go on with one of two answers.
    """
    lost = any(not one.method and one.fate.what not in ("passes", "delayed") for one in voyage.lane.passed)
    return (
        lost and voyage.way != "url" and any(call.endswith(("together", "branches")) for call in voyage.calls)
    )


def _asked_again(voyage: Voyage) -> Iterator[str]:
    in_one_life = Counter((one.life, one.text) for one in voyage.log if one.event == "asked")
    # What was taken away from whoever was before it is put up again.
    in_one_life.subtract((one.life, one.text) for one in voyage.log if one.event == "withdrawn")
    for (life, whose), times in in_one_life.items():
        if times > 1:
            yield f"asked {times} times in life {life}: {whose}"
    for passed in voyage.lane.passed:
        sent = _answers(passed)
        asked = (one for one in voyage.log if one.event == "asked" and one.text == sent)
        again = [one for one in asked if one.at > passed.at]
        if again:
            yield f"asked again in life {again[0].life}, though its answer was sent in {passed.life}: {sent}"
    for said in voyage.log:
        killed_at = min((kill for kill in voyage.kills if kill > said.at), default=math.inf)
        asked = (one for one in voyage.log if one.event == "asked" and one.text == said.text)
        again = [one for one in asked if one.at > killed_at]
        if said.event == "answered" and again and killed_at > said.at + JOURNALED_S:
            yield f"asked again in life {again[0].life}, though it was answered in {said.life}: {said.text}"


def _mixed_up(voyage: Voyage) -> Iterator[str]:
    """Of questions that are alike, one that had the answer of another, or was asked too often."""
    kept = Counter[str]()
    asked = Counter[tuple[int, str]]()
    for one in voyage.log:
        if "#" not in one.text:
            continue
        numbers = re.findall(r"#[\d.]+", one.text)
        if one.event in ("result", "resumed") and len(numbers) != len(set(numbers)):
            yield f"one answer to two questions: {one.text}"
        asked[one.life, unnumbered(one.text)] += (one.event == "asked") - (one.event == "withdrawn")
        if one.event == "answered":
            killed_at = min((kill for kill in voyage.kills if kill > one.at), default=math.inf)
            kept[unnumbered(one.text)] += killed_at > one.at + JOURNALED_S
    for (life, what), times in asked.items():
        if times > 2:
            yield f"asked {times} times in life {life}: {what}"
    for what, times in kept.items():
        if times > 2:
            yield f"answered {times} times: {what}"


def unnumbered(text: str) -> str:
    """What was said, without the numbers of answers."""
    return re.sub(r"#[\d.]+", "", text)


def _answered_late(voyage: Voyage) -> Iterator[str]:
    """A reply to a question that the server had been told not to wait for any more."""
    cancelled: dict[str, float] = {}
    for one in voyage.lane.passed:
        told = one.replied_at is not None and one.fate.what in ("passes", "delayed")
        if one.method == "tasks/cancel" and told:
            cancelled.setdefault(mark(one.message["params"]["taskId"]), one.replied_at or 0.0)
    for passed in voyage.lane.passed:
        answer = _answers(passed)
        since = cancelled.get(answer.partition("-")[0]) if answer else None
        if since is not None and passed.at > since + 0.05:
            yield f"answered after the task was cancelled: {answer}"
    yield from answered_late(voyage.lane.passed, cancelled)


def _polled_early(voyage: Voyage) -> Iterator[str]:
    polls: dict[Any, Passed] = {}
    for one in voyage.lane.passed:
        if one.method != "tasks/get" or not one.reached:
            continue
        name = (one.message["params"]["taskId"], one.life, one.session_id)
        before = polls.get(name)
        polls[name] = one
        if before is not None and one.at - before.at < voyage.interval_s - LATE_S:
            yield f"polled after {one.at - before.at:.3f} s in life {one.life}"


def _answers(passed: Passed) -> str | None:
    """What a reply of the client's says; ``None`` if it is none."""
    result: Any = passed.message.get("result")
    if passed.method or not isinstance(result, dict):
        return None
    content = result.get("content") or {}
    said = content.get("name") or content.get("text")
    return str(said) if said else None
