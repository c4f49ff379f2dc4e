"""A host is stopped at every point of its life, one after the other: each commit and each send.

What it does is in :mod:`.scenarios`; what must hold whatever happens to it is here. The short form stops
each scenario at some of its points, ``--long`` at all of them.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from mcp_tasks_client import Point
from mcp_tasks_client.machine.states import OutcomeUnknown
from mcp_tasks_client.protocol.replies import is_url_key
from mcp_tasks_client.testing import POINTS, LostReply
from mcp_tasks_client.testing.probes import Moment

from .scenarios import AS_HOST, OLD, SCENARIOS, TOOL, Fate, How, Scenario, Scene, result_of

pytestmark = pytest.mark.anyio

Passed = tuple[Moment, Point]

EVERY_POINT: Final[set[Passed]] = {(moment, point) for point in POINTS for moment in ("before", "after")}

NOT_AS_HOST: Final = {"commit: Notified", "commit: acknowledge"}
"""What no call through a transport of ours passes: it does not listen to a server of 2026-07-28, and only a
client acknowledges."""

TWICE: Final = ("questions before the task and in it", "poll refused with 429")
"""Scenarios whose second life is killed too, at each of its first points."""

STRIDE: Final = 7
"""The short form stops at one in so many points, in each scenario at others."""

STOPPED: Final = [(name, how) for name in SCENARIOS for how in ("killed", "fails")]
"""Those of one scenario after each other, so that one process plays its course once for both."""

_ON_ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what nothing stops runs on both


@pytest.fixture
def stride(request: pytest.FixtureRequest) -> int:
    return 1 if request.config.getoption("--long") else STRIDE


async def lead(scenario: Scenario, *fates: Fate) -> list[str]:
    """Lead all lives of one scene, the first one that is mortal and later ones, and judge it."""
    scene = Scene(scenario)
    gc.disable()  # so that garbage is collected at no moment of its own
    try:
        await scene.play(*fates)
        return await laws(scene)
    finally:
        gc.enable()


async def course(name: str) -> list[Passed]:
    """The points that the mortal life of a scenario passes if nothing stops it."""
    fate = Fate()
    broken = await lead(SCENARIOS[name], fate, Fate())
    assert not broken
    return fate.passed


async def known_course(name: str) -> list[Passed]:
    """The same, played once in a process."""
    if name not in _COURSES:
        _COURSES[name] = await course(name)
    return _COURSES[name]


_COURSES: Final[dict[str, list[Passed]]] = {}
"""On asyncio, where a scenario takes the same course each time."""


# ── what must hold ────────────────────────────────────────────────────────────────────────────

_SENT: Final = {"commit: claim", "commit: CallBegun", "commit: CallAgain"}
_REPLIED: Final = {
    "commit: CallReturned",
    "commit: CallFailed",
    "commit: CallRefused",
    "commit: InputAsked",
    "commit: TaskCreated",
}

_WORDS_LOST: Final[set[Passed]] = {
    ("before", "commit: PollFailed"),
    ("before", "commit: UpdateFailed"),
    ("before", "commit: CancelFailed"),
    ("after", "send: tasks/get"),
    ("before", "commit: Observed"),
}
"""Where a life ends between a reply that asks for more patience and its commit. Nobody else has read it."""

_HINT_LOST: Final[set[Passed]] = {
    ("after", "send: tasks/get"),
    ("before", "commit: Observed"),
    ("after", "commit: Observed"),
}
"""Where it takes a failure for a client to forget a snapshot, and the longer hint in it."""

_ANSWER_LOST: Final[set[Passed]] = {("before", "commit: take"), ("after", "commit: take")}
"""Where it takes a failure for a call to be refused that brings the host's answer."""


async def laws(scene: Scene) -> list[str]:
    """What did not hold in a scene, in sentences."""
    fates = [life.plan for life in scene.lives]
    stopped = [fate for fate in fates if fate.stopped_at is not None]
    return [
        *scene.broken,
        *_at_the_server(scene, stopped),
        *await _in_the_journal(scene),
        *_told(scene, fates),
        *(_keyed(scene, stopped) if scene.scenario.keyed else await _without_a_key(scene, fates, stopped)),
        *_asked(scene, stopped),
        *_answered(scene),
        *_at_its_death(scene),
    ]


def _at_the_server(scene: Scene, stopped: list[Fate]) -> Iterator[str]:
    witness = scene.server.witness
    early = {str(poll) for poll in witness.early_polls}
    excused = scene.scenario.late or any(
        fate.stopped_at in (_WORDS_LOST if fate.how == "killed" else _HINT_LOST) for fate in stopped
    )
    for what in witness.broken():  # also: one payload for each task and key
        if what not in early or not excused:
            yield what
    if witness.calls[TOOL] > 1 + scene.consents:
        yield f"the tool ran {witness.calls[TOOL]} times, with consent to {scene.consents} more"


async def _in_the_journal(scene: Scene) -> list[str]:
    """At the end nothing is left to do in it, and nobody has it."""
    broken = []
    if await scene.theirs() != scene.theirs_before:
        broken.append("what belongs to somebody else was touched")
    records = await scene.records()
    if len(records) > 1:
        broken.append(f"one call has more than one record: {records}")
    for record in records:
        unknown = isinstance(record.state, OutcomeUnknown) and scene.unknown
        if not unknown and not (record.finished and record.delivered_at is not None):
            broken.append(f"{record!r} is left over")
        if record.owner is not None:
            broken.append(f"{record!r} is still owned")
        if record.record_id == OLD:
            broken.append("what is old was not forgotten")
    return broken


def _told(scene: Scene, fates: list[Fate]) -> Iterator[str]:
    """Whatever hosts were told is one thing, and the server's."""
    answers = {key: payloads[0] for (_, key), payloads in scene.server.witness.answers.items()}
    ends = scene.scenario.ends or {result_of(answers)["content"][0]["text"]}
    wished: Passed = ("after", "commit: CancelRequested")
    committed = any(fate.passed.count(wished) > fate.failed_at(wished) for fate in fates)
    if scene.scenario.wish and (committed or scene.wished):
        ends = {"TaskCancelledError"}
    for outcome in scene.outcomes:
        if outcome not in ends:
            yield f"a host was told {outcome}, and not {ends}"


def _keyed(scene: Scene, stopped: list[Fate]) -> Iterator[str]:
    """A keyed call has an end, which is unknown only if it was stopped in the middle of a request."""
    if not scene.outcomes and not scene.unknown:
        yield "the call has no end"
    replies_lost = any(isinstance(one, LostReply) for one in scene.scenario.faults.get("tools/call", ()))
    if scene.unknown and not replies_lost and not any(map(_stopped_in_a_call, stopped)):
        yield "the outcome is unknown for no reason"
    if scene.unknown and scene.outcomes and not scene.scenario.may_resend:
        yield "the outcome was unknown, and then known"


def _stopped_in_a_call(fate: Fate) -> bool:
    """Whether it was stopped after an intent was committed, and before what became of it was.

    Between the commit and the send nothing has happened yet. Who comes later cannot know that.
    """
    if fate.how == "fails":
        return fate.stopped_at in {("before", "send: tools/call"), ("after", "send: tools/call")}
    under_way = False
    for number, (moment, point) in enumerate(fate.passed, 1):
        # What others were committing at the end may have been committed.
        if point in _SENT and (moment == "after" or number < len(fate.passed)):
            under_way = True
        elif point in _REPLIED and moment == "after":
            under_way = False
    return under_way


async def _without_a_key(scene: Scene, fates: list[Fate], stopped: list[Fate]) -> list[str]:
    """A call without a key is lost up to the commit of its task ID, and after that no more."""
    broken = []
    committed = any(fate.has("after", "commit: TaskCreated") for fate in fates)
    request_lost = any(
        fate.failed_at(("before", "send: tools/call")) or fate.failed_at(("after", "send: tools/call"))
        for fate in stopped
    )
    if committed and not scene.outcomes:
        broken.append("the task is lost, though its ID was committed")
    if not committed and (scene.outcomes or await scene.records()):
        broken.append("there is a task without a commit of its ID")
    if not committed and not request_lost and not any(fate.how == "killed" for fate in stopped):
        broken.append("the task is lost, though nobody was killed")
    return broken


def _asked(scene: Scene, stopped: list[Fate]) -> Iterator[str]:
    """While nobody is killed, each question is put once: a full disk costs no answer."""
    if any(fate.how == "killed" for fate in stopped):
        return  # which ones may be put again then, _at_its_death says
    not_answered = sum(fate.stopped_at == ("after", "send: a question to the host") for fate in stopped)
    if scene.scenario.through.endswith(
        "asked itself"
    ):  # a failure where its answer comes in costs the answer
        not_answered += sum(fate.stopped_at in _ANSWER_LOST for fate in stopped)
    asked = Counter(key for life in scene.lives for key in life.asked)
    for key, times in asked.items():
        if times > 1 + not_answered:
            yield f"{key} was asked {times} times, though nobody was killed"


def _answered(scene: Scene) -> Iterator[str]:
    """Of each question the server gets the answer that was told to count, and each that was committed."""
    if scene.scenario.wish or scene.unknown or not scene.outcomes:
        return  # of a call that is cancelled, or may be lost, nothing is sent any more
    sent = {key: payloads for (_, key), payloads in scene.server.witness.answers.items()}
    for answer in scene.counts:
        if [answer] not in sent.values():
            yield f"{answer} was told to count, and the server got {sent}"
    for key in scene.committed - sent.keys():
        if not is_url_key(key):  # whether a URL was visited, nobody tells the server
            yield f"the answer to {key} was committed, and never sent"


def _at_its_death(scene: Scene) -> Iterator[str]:
    """The journal holds what was committed, and nothing that was not; and all of it comes home."""
    for life in scene.lives:
        fate = life.plan
        if fate.how != "killed" or fate.stopped_at is None:
            continue
        if fate.passed[-1] != fate.stopped_at:
            yield f"a life went on after {fate.stopped_at}"
        answering = any(
            fate.passed.count(("before", commit)) > fate.passed.count(("after", commit))
            for commit in ("commit: instruct", "commit: AnswerReady")
        )
        # Whether a URL was visited, the server knows: the call goes again, and nothing is lost.
        lost = {key for key in life.returned if not is_url_key(key)} - scene.committed
        if lost and not answering and fate.stopped_at != ("after", "send: a question to the host"):
            yield f"the answers to {lost} were lost"
        if any(record.task_id is not None for record in life.known) and not scene.outcomes:
            yield "a task whose ID was committed did not come home"
        forgets = life.told and not scene.scenario.keyed  # nobody can ask for it again
        known = any(record.task_id for record in life.known)
        if fate.has("after", "commit: TaskCreated") and not known and not forgets:
            yield "a task ID is not in the journal, though it was committed"


# ── the tests ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_host_that_nothing_stops_comes_to_its_end(name: str) -> None:
    assert await course(name)


@_ON_ASYNCIO
async def test_every_point_is_passed_in_some_scenario(anyio_backend: str) -> None:
    by_client: set[Passed] = set()
    as_host: set[Passed] = set()
    for name in SCENARIOS:
        (as_host if name in AS_HOST else by_client).update(await known_course(name))
    assert by_client == EVERY_POINT
    assert {point for _, point in EVERY_POINT - as_host} == NOT_AS_HOST
    assert not {point for _, point in as_host} & NOT_AS_HOST


@_ON_ASYNCIO
@pytest.mark.parametrize(("name", "how"), STOPPED, ids=map(", ".join, STOPPED))
async def test_wherever_a_host_is_stopped_every_law_holds(
    name: str, how: How, stride: int, anyio_backend: str
) -> None:
    points = await known_course(name)
    broken: dict[str, list[str]] = {}
    for number in range(STOPPED.index((name, how)) % stride, len(points), stride):
        fate, point = Fate(how, number), points[number]
        broken[f"{number}, {' '.join(point)}"] = await lead(SCENARIOS[name], fate, Fate())
        assert fate.stopped_at == point, "a scenario takes the same course each time"
        assert fate.passed[: number + 1] == points[: number + 1]
    assert not {where: found for where, found in broken.items() if found}


@_ON_ASYNCIO
@pytest.mark.parametrize("name", TWICE)
async def test_wherever_a_host_is_killed_twice_every_law_holds(
    name: str, stride: int, anyio_backend: str
) -> None:
    points = await known_course(name)
    broken: dict[str, list[str]] = {}
    for first in range(0, len(points), stride):
        for second in range(0, 10, stride):
            again = Fate("killed", second)
            found = await lead(SCENARIOS[name], Fate("killed", first), again, Fate())
            if again.stopped_at is None:
                break  # it had no more points than that
            broken[f"{first}, then {second}, {' '.join(again.stopped_at)}"] = found
    assert broken
    assert not {where: found for where, found in broken.items() if found}
