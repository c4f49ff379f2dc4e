"""The contract of the crossings, acted out in one cell.

1. A call that nobody has ended returns its own result, unchanged.
2. Under a key the tool runs once, for all clients, journal objects, processes and versions, whether or not
   the call becomes a task. Another call under it is refused, and so is what is no key. No key reaches the
   server. A lost reply is an unknown outcome.
3. What was given up, cancelled or killed is found again, once: under its key, or by ``resume()``.
4. A native cancellation reaches the caller.
5. Nobody gets another's result, session, tools, error or credential.
6. The call of a living process is not taken, that of a dead one is.
7. The journal is there for everybody, and nothing is left when the last one has gone.
8. The question of a task is asked once, of the user whose call it is, and the server gets the one answer.

Calls belong to users: ``ada`` has those with an argument below 100, ``bob`` the others. So the server sees
what comes under another's name (:attr:`Site.crossed`), and the test sees it in a result.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .axes import Cell
from .host import ASKED, META_KEY, PLAIN, HostProcess, Outcome
from .site import INVALID_PARAMS, NEWER, OLDER, Site, answer_of, question_of, result_of, user_of

__all__ = ["Crossing"]

KEY: Final = "the-key-of-ada-and-bob"
OWN_KEY: Final = "the-key-of-another-call"
FATED, OTHER, OTHER_OF_BOB, NEVER = 1, 2, 102, 9
"""Arguments: of the call that meets its fate, of the other one, and of a call that is refused."""

PLAIN_KEY: Final = "the-key-of-a-call-that-makes-no-task"

NO_KEYS: Final = (42, "", ["k"], True)


class Crossing:
    """What happens in one cell.

    Args:
        cell: Its axes.
        site: The server.
        start: Starts a host.
        folder: Of the hosts.
    """

    def __init__(self, cell: Cell, site: Site, start: Callable[[], HostProcess], folder: Path) -> None:
        self.cell = cell
        self.site = site
        self.start = start
        self.folder = folder
        self.first = start()
        self.second = start() if cell.company == "two processes" else self.first
        self.b = "b" if cell.crowded else "a"
        """The client of the second host."""

        self.two_users = cell.users == "two users"
        self.unanswered = cell.fate.endswith("unanswered")
        self.other = OTHER_OF_BOB if self.two_users else OTHER
        self.key = KEY if cell.key != "no key" else None
        self.told: list[Outcome] = []

    def play(self) -> None:
        """All acts."""
        self.open()
        fated, other, twin = self.begin()
        ended = self.meet_fate(fated)
        self.site.set(done=True)
        if not ended:
            assert self.result_in(self.first.end(fated)) == FATED, "1: nobody has ended it"
        if self.second.alive and self.cell.fate != "upgraded":
            self.see_others(other, twin)
        if self.first.alive and self.cell.fate != "upgraded":
            self.first.do("close", client="a")
        self.find_again(ended)
        if self.key is not None:
            self.make_a_plain_call_twice()
        if self.cell.key == "meta":
            self.refuse_what_is_no_key()
        self.leave()
        self.look_at_server()
        self.look_at_questions()

    # ── the acts ──

    def open(self) -> None:
        self.first.do("open", name="a", way=self.cell.way, user="ada", journal="j")
        if self.cell.crowded:
            user, journal = (
                "bob" if self.two_users else "ada",
                "j" if self.cell.company == "one journal" else "k",
            )
            self.second.do("open", name="b", way=self.cell.other_way, user=user, journal=journal)

    def begin(self) -> tuple[int, int, int | None]:
        """Make the call that meets its fate; another; and under its key a twin, and one that is refused."""
        cell, site, call = self.cell, self.site, self.second.begin
        gives_up = cell.fate == "given up"
        site.set(withheld={FATED} if self.unanswered else set())
        fated = self.first.begin("call", client="a", label="fated", n=FATED, key=self.key, gives_up=gives_up)
        # The record of a task that is polled is in the journal, and so is an answer that has arrived.
        begun = site.runs if self.unanswered else site.answers if site.asks else site.polls
        site.wait_until(lambda: begun[FATED] or self.first.is_over(fated))
        self.answered = bool(site.answers[FATED])
        own_key = self.key and (KEY if self.two_users else OWN_KEY)
        other = call("call", client=self.b, label="other", n=self.other, key=own_key)
        begun = site.answers if site.asks else site.polls
        site.wait_until(lambda: begun[self.other] or self.second.is_over(other))
        twin = None
        if self.key is not None and not self.two_users:
            twin = call("call", client=self.b, label="twin", n=FATED, key=KEY)
            refused = call("call", client=self.b, label="never", n=NEVER, key=KEY, gives_up=True)
            assert "belongs to a call with" in self.note(self.second.end(refused))["message"], (
                "2: another call"
            )
        if not gives_up:
            taken = self.second.do("count_resumed", user="ada", journal="r")
            assert taken == 0, "6: taken from a living process"
        return fated, other, twin

    def meet_fate(self, fated: int) -> bool:
        """Returns whether the call has ended without its result."""
        match self.cell.fate:
            case "given up":
                assert "error" in self.note(self.first.end(fated))
            case "cancelled" | "cancelled unanswered":
                self.first.do("cancel", client="a", label="fated")
                outcome = self.note(self.first.end(fated))
                assert outcome["message"] == "of asyncio", "4: the cancellation does not reach the caller"
                self.site.set(withheld=set())
            case "killed" | "killed unanswered":
                self.first.kill()
                self.site.set(withheld=set())
            case "renewed":
                for host in {self.first, self.second}:
                    host.do("renew", user="ada", token="ada-2")
                self.site.set(tokens={"ada-2": "ada", "bob-1": "bob"})
                self.site.wait_until(lambda: self.site.refused["ada-1"])
                return False
            case "upgraded":
                self.upgrade()
        return True

    def upgrade(self) -> None:
        """Close all clients, have a new one ask the newer server, and put the older one back."""
        self.first.do("close", client="a")
        if self.cell.crowded:
            self.second.do("close", client="b")
        self.site.set(version=NEWER)
        assert all("error" in outcome for outcome in self.ask_again()), "3: the newer server does not know it"
        records = self.second.do("records", user="ada", journal="r")
        # Until a poll has shown that an answer counts, a record says "input_required".
        unfinished = ("working", "input_required")
        assert [True for status, is_owned in records if status in unfinished and not is_owned], (
            "3: the record stays"
        )
        self.site.set(version=OLDER)

    def see_others(self, other: int, twin: int | None) -> None:
        outcome = self.note(self.second.end(other))
        # One HTTP client with two users may refuse the second of them, if it says what to do.
        if not (self.cell.one_http_client and self.two_users and "principal=" in outcome.get("message", "")):
            assert self.result_in(outcome) == self.other, "1, 5: nobody has ended it"
        if twin is not None:
            outcome = self.note(self.second.end(twin))
            if not self.is_unknown(outcome) and not (self.only_by_url and "error" in outcome):
                assert self.result_in(outcome) == FATED, "2: who shares a key"

    def find_again(self, ended: bool) -> None:
        """Have whoever made the call come back for it."""
        if self.key is None and not ended:
            return  # it has its result
        found = self.ask_again()
        if self.mixed:
            found = [outcome for outcome in found if outcome.get("error") != "TaskNotFoundError"]
        if self.unanswered and self.key is not None and self.is_unknown(found[0]):
            return
        all_ended = self.cell.fate == "upgraded" or not self.second_lived
        mine = {FATED, OTHER} if self.key is None and all_ended and not self.two_users else {FATED}
        results = sorted(map(self.result_in, found))
        if self.key is None and self.unanswered and FATED not in results:
            mine.discard(FATED)  # its reply came too late, or never: there was no task by which it is found
        assert results == sorted(mine), f"3: found again, once: {results}"

    def ask_again(self) -> list[Outcome]:
        """Repeat the call under its key, or else resume; in the other process, if there are two."""
        self.second_lived = self.second.alive
        if not self.second.alive:
            self.second = self.start()
        if self.key is None:
            found: list[Outcome] = self.second.do("resume", user="ada", journal="r")
            if not found and self.cell.fate in ("given up", "cancelled"):  # its result may have passed it
                kept = self.second.do("resume", user="ada", journal="r", delivered_within_s=600.0)
                found = [outcome for outcome in kept if self.result_in(outcome) == FATED]
            return found
        outcome = self.repeat(self.cell.other_way)
        if self.only_by_url and "error" in outcome:
            outcome = self.repeat("url")
        return [outcome]

    def repeat(self, way: str) -> Outcome:
        self.second.do("open", name="r", way=way, user="ada", journal="r")
        outcome = self.note(self.second.do("call", client="r", label="again", n=FATED, key=KEY))
        self.second.do("close", client="r")
        return outcome

    def make_a_plain_call_twice(self) -> None:
        self.second.do("open", name="r", way=self.cell.way, user="ada", journal="r")
        for _ in range(2):
            outcome = self.second.do("call", client="r", label="plain", n=PLAIN, key=PLAIN_KEY)
            assert self.result_in(outcome) == PLAIN, "2: the same result"
        self.second.do("close", client="r")

    def refuse_what_is_no_key(self) -> None:
        self.second.do("open", name="r", way=self.cell.way, user="ada", journal="r")
        for no_key in NO_KEYS:
            outcome = self.note(
                self.second.do("call", client="r", label="never", n=NEVER, key=no_key, gives_up=True)
            )
            ours = self.cell.way in ("url", "extension")  # a TasksClient, which raises what Python raises
            refused = outcome["error"] == "ValueError" if ours else outcome["code"] == INVALID_PARAMS
            assert refused, f"2: {no_key!r} is no key, {outcome}"
            assert "key" in outcome["message"]

    def leave(self) -> None:
        for host in {self.first, self.second}:
            if host.alive:
                left = host.do("leave")
                assert left in ([], ["mcp-tasks-journal"]), "7: but for the one thread of the file"
        assert [outcome for outcome in self.told if "Journal" in json.dumps(outcome)] == [], (
            "7: a journal's error"
        )

    def look_at_server(self) -> None:
        runs = dict(self.site.runs)
        if self.cell.one_http_client and self.two_users:
            runs.setdefault(self.other, 1)  # the call was refused, see above
        plain = {} if self.key is None else {PLAIN: 1}
        assert runs == {FATED: 1, self.other: 1, **plain}, "2, 3: each tool runs once"
        # What ada takes up of bob's is asked for by her, in his MCP session.
        crossed = [one for one in self.site.crossed if not self.mixed or "call" in one]
        assert crossed == [], f"5: under another's name: {crossed}"
        secrets = (META_KEY, KEY, OWN_KEY, PLAIN_KEY)
        assert [one for one in self.site.seen if any(key in one for key in secrets)] == [], (
            "2: a key is not sent"
        )

    def look_at_questions(self) -> None:
        file = self.folder / ASKED
        asked = [line.split("\t") for line in file.read_text().splitlines()] if file.exists() else []
        mine = {question_of(n): n for n in (FATED, self.other)}
        assert {message for _, message in asked} <= set(mine), "8: asked for a call that was not made"
        if not self.mixed:
            assert all(user == user_of(mine[message]) for user, message in asked), f"8: {asked}"
        times = Counter(mine[message] for _, message in asked)
        for n in (FATED, self.other):
            answers = self.site.answers[n]
            if n == FATED and self.cell.fate == "given up" and not self.answered:
                continue  # it was given up before its question was answered, which is then asked again
            assert times[n] == bool(answers), f"8: asked {times[n]} times, and answered {answers}"
            assert all(answer == answer_of(n) for answer in answers), f"8: {answers}"

    # ── words ──

    def note(self, outcome: Outcome) -> Outcome:
        self.told.append(outcome)
        return outcome

    @property
    def mixed(self) -> bool:
        """Whether ``resume()`` of one user takes up what the other began.

        Two users without a principal, as docs/guides/hosts.md says. The server refuses such a task.
        """
        return self.cell.one_http_client and self.two_users and self.key is None

    @property
    def only_by_url(self) -> bool:
        """Whether a host's session cannot reach the tasks of another MCP session; TasksClient(url) can."""
        return self.cell.other_way == "stream" and self.cell.version == OLDER

    def is_unknown(self, outcome: Outcome) -> bool:
        """Whether it is the outcome of a call whose reply was lost."""
        return self.unanswered and "on_unknown" in outcome.get("message", "")

    def result_in(self, outcome: Outcome) -> int:
        """The argument of the call whose result it is, unchanged."""
        assert "result" in self.note(outcome), outcome
        result = outcome["result"]
        n: int = next(iter(result["structuredContent"].values()))
        own = result_of(n)
        assert result["content"] == own["content"]
        assert result["structuredContent"] == own["structuredContent"]
        assert result["_meta"]["own"] == own["_meta"]["own"]
        return n
