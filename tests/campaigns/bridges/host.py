"""A host in a process of its own, whose model calls tools through a bridge: JSON-RPC by hand over pipes.

``python -m tests.campaigns.bridges.host ORDER`` (JSON, see :class:`Order`). It prints ``ready``, starts a
bridge, and makes calls until a line comes on its stdin. Then it brings home what it has begun, and ends.

The model goes on as models do. A call that takes too long for the host is made again with equal arguments. An
answer in between is followed by its reference, or the model forgets that and makes the call again. A bridge
that has ended is started again. A host that has ended is started again with what its model has read so far:
the logs of the host's earlier lives.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

from tests._forked import make_command

from ..torture.evidence import LIFE_HEADER, Line, Log, read_log

__all__ = ["BRIDGES_A_LIFE", "BY_A_MODEL", "CURRENT", "Order"]

JSONObject: TypeAlias = dict[str, Any]

BRIDGES_A_LIFE: Final = 1000
"""The bridges of life 7 are 7001, 7002 and so on, in the requests that they send."""

BY_A_MODEL: Final = "by a model"
"""What the model answers wherever it can say anything. No question may be answered so."""

CURRENT: Final = "2026-07-28"
_KEY: Final = "mcp-tasks-client/idempotency-key"
_AT_ONCE: Final = 3
"""Calls of a model at the same time."""

_TOOLS: Final = {"rest": 5, "greet": 3, "survey": 1, "first": 1, "quick": 1}
"""The tools that a model calls, by how often. ``first`` asks while there is no task, so that only a host with
a person gets its result."""

_THINKS_S: Final = 0.4
"""Seconds for which a model thinks about an answer in between, at most."""

_LONGEST_LINE: Final = 1 << 20
_REFERENCE: Final = re.compile(r'reference "(\w+)"')


class BridgeGoneError(Exception):
    """The bridge has ended before its reply."""


class RefusedError(Exception):
    """The reply is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a host is to do.

    Attributes:
        url: Of the server.
        journal: Of all bridges.
        folder: For its log, and those of its bridges.
        life: Its number.
        earlier: The lives that the same host has had before.
        name: By which it introduces itself. Hosts of one name share their calls.
        version: Of the protocol.
        has_person: Whether it has somebody who answers forms.
        answer_within_s: As the option of the bridge; 0 is never.
        limit_s: Seconds after which it gives a call up.
        share_keyed: Of the calls, which share is made under an idempotency key.
        seed: Decides about the calls.
    """

    url: str
    journal: str
    folder: str
    life: int
    earlier: list[int]
    name: str
    version: str
    has_person: bool
    answer_within_s: float
    limit_s: float
    share_keyed: float
    seed: int

    def command(self) -> list[str]:
        """What runs the host, for ``Program``."""
        return ["-m", __name__, json.dumps(asdict(self))]

    def log_of(self, life: int) -> Path:
        """The log of one life."""
        return Path(self.folder) / f"life-{life}.jsonl"


@dataclass(slots=True)
class Call:
    """A call, as the model knows it.

    Attributes:
        intent: Names it.
        tool: Is called.
        seconds: Of work.
        is_keyed: Whether the host makes it under a key.
        reference: By which it was promised.
        is_over: The model has its result, or was told that nobody knows of it.
        given_up: How often the host has lost patience. It has more each time, or it would have no result on a
            machine that is busy.
    """

    intent: str
    tool: str
    seconds: float
    is_keyed: bool
    reference: str | None = None
    is_over: bool = False
    given_up: int = 0


class Bridge:
    """A bridge, and the connection to it."""

    def __init__(self, order: Order, log: Log, number: int) -> None:
        self._order = order
        self._log = log
        self.number = order.life * BRIDGES_A_LIFE + number
        self._replies: dict[int, asyncio.Future[JSONObject]] = {}
        self._ids = count(1)
        self._chance = random.Random(self.number)
        self._is_gone = False
        self._asked: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the process, and introduce the host.

        Raises:
            BridgeGoneError: It was killed.
        """
        order = self._order
        command = make_command(
            *("-m", "mcp_tasks_client", "bridge", order.url, "--journal", order.journal),
            *("--header", f"{LIFE_HEADER}: {self.number}", "--answer-within", order.answer_within_s),
            *("--log-file", Path(order.folder) / f"bridge-{self.number}.txt"),
        )
        with (Path(order.folder) / f"bridge-{self.number}.err").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                limit=_LONGEST_LINE,
            )
        self._log.write("bridge", text=f"{self.number} {self._process.pid}")
        self._reading = asyncio.ensure_future(self._read())
        if order.version == CURRENT:
            await self.request("server/discover", {})
            return
        capabilities = {"elicitation": {}} if order.has_person else {}
        info = {"name": order.name, "version": "1"}
        params = {"protocolVersion": order.version, "capabilities": capabilities, "clientInfo": info}
        await self.request("initialize", params)
        self._send({"method": "notifications/initialized"})

    async def request(
        self, method: str, params: JSONObject, limit_s: float | None = None, *, wants_progress: bool = False
    ) -> JSONObject:
        """The result of a request.

        Raises:
            BridgeGoneError: The bridge has ended.
            RefusedError: The reply is an error.
            TimeoutError: The time was over, and the bridge was told so.
        """
        if self._is_gone:
            raise BridgeGoneError
        number = next(self._ids)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        meta: JSONObject = {**params.get("_meta", {})}
        if wants_progress:
            meta["progressToken"] = number
        if self._order.version == CURRENT:
            capabilities = {"elicitation": {"form": {}}} if self._order.has_person else {}
            ours = "io.modelcontextprotocol"
            meta |= {
                f"{ours}/protocolVersion": CURRENT,
                f"{ours}/clientInfo": {"name": self._order.name, "version": "1"},
                f"{ours}/clientCapabilities": capabilities,
            }
        self._send(
            {"id": number, "method": method, "params": {**params, **({"_meta": meta} if meta else {})}}
        )
        try:
            async with asyncio.timeout(limit_s):
                said = await reply
        except TimeoutError:
            self._send({"method": "notifications/cancelled", "params": {"requestId": number}})
            raise
        finally:
            self._replies.pop(number, None)
        if "error" in said:
            raise RefusedError(json.dumps(said["error"]))
        return dict(said["result"])

    async def end(self) -> int:
        """Close its stdin, and wait for its end. Returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(60):
            return await self._process.wait()

    async def answer(self, message: str, fields: list[str]) -> JSONObject:
        """What the host's person says to a form."""
        about = {"intent": message.partition(":")[0], "question": message}
        self._log.write("asked", **about)
        await asyncio.sleep(self._chance.uniform(0.0, 0.3))
        words = f"person of bridge {self.number}, {next(self._ids)}"
        self._log.write("answered", **about, text=words)
        return {"action": "accept", "content": dict.fromkeys(fields, words)}

    def _send(self, message: JSONObject) -> None:
        assert self._process.stdin is not None
        if not self._is_gone:
            self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                message = json.loads(line)
                if "method" not in message:
                    reply = self._replies.get(message["id"])
                    if reply is not None and not reply.done():
                        reply.set_result(message)
                elif "id" in message:
                    asked = asyncio.ensure_future(self._asked_by(message))
                    self._asked.add(asked)
                    asked.add_done_callback(self._asked.discard)
        except ValueError as error:  # half a line is the last that a killed bridge has said
            self._log.write("broken off", text=repr(error))
        self._is_gone = True
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(BridgeGoneError())

    async def _asked_by(self, message: JSONObject) -> None:
        params = message["params"]
        answer = await self.answer(params["message"], params["requestedSchema"]["required"])
        self._send({"id": message["id"], "result": answer})


class Host:
    """A host and its model."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._log = Log(order.log_of(order.life))
        self._chance = random.Random(f"{order.seed} {order.life}")
        self._numbers = count(1)
        self._bridges = count(1)
        self._bridge: Bridge | None = None
        self._starting = asyncio.Lock()
        self._is_finishing = asyncio.Event()

    async def run(self) -> None:
        """Make calls until we are told to finish, and bring them home."""
        left = [call for call in self._remembered() if not call.is_over]
        # A host is ready before its bridge, so that both may be killed while that starts.
        print("ready", flush=True)
        reading = asyncio.ensure_future(asyncio.to_thread(os.read, 0, 1))
        reading.add_done_callback(lambda _: self._is_finishing.set())
        waiting = iter(left)
        await asyncio.gather(*(self._work(waiting) for _ in range(_AT_ONCE)))
        code = await (await self._connected()).end()
        self._log.write("done", text=str(code))

    async def _work(self, left: Iterator[Call]) -> None:
        for call in left:
            await self._see_through(call)
        while not self._is_finishing.is_set():
            await self._see_through(self._invent())

    def _invent(self) -> Call:
        tools = {name: often for name, often in _TOOLS.items() if name != "first" or self._order.has_person}
        tool = self._chance.choices([*tools], [*tools.values()])[0]
        return Call(
            f"{self._order.life}-{next(self._numbers)}",
            tool,
            round(self._chance.uniform(0.0, 1.5), 3),
            self._chance.random() < self._order.share_keyed,
        )

    def _remembered(self) -> list[Call]:
        """The calls of earlier lives, by what they wrote down."""
        calls: dict[str, Call] = {}
        for life in self._order.earlier:
            for line in read_log(self._order.log_of(life)):
                if line.intent is None:
                    continue
                if line.what == "begun" and line.intent not in calls:
                    tool, seconds = json.loads(line.text)
                    calls[line.intent] = Call(line.intent, tool, seconds, line.keyed)
                _learn(calls[line.intent], line)
        return [*calls.values()]

    async def _connected(self) -> Bridge:
        async with self._starting:
            while self._bridge is None or self._bridge._is_gone:
                self._bridge = Bridge(self._order, self._log, next(self._bridges))
                try:
                    await self._bridge.start()
                except BridgeGoneError:
                    continue
            return self._bridge

    def _note(self, call: Call, what: Any, **fields: Any) -> None:
        self._log.write(what, intent=call.intent, keyed=call.is_keyed, **fields)
        _learn(call, Line(at=0.0, what=what, intent=call.intent, **fields))

    async def _see_through(self, call: Call) -> None:
        while not call.is_over:
            bridge = await self._connected()
            by_reference = call.reference is not None and self._chance.random() < 0.7
            try:
                if by_reference:
                    await self._ask_for_result(bridge, call)
                else:
                    await self._call(bridge, call)
            except BridgeGoneError:
                self._note(call, "bridge gone")
            except TimeoutError:
                self._note(call, "given up")
            except RefusedError as error:
                is_unknown = "not known whether the tool has run" in str(error)
                self._note(call, "unknown" if is_unknown else "error", text=str(error))

    async def _call(self, bridge: Bridge, call: Call) -> None:
        arguments = {"intent": call.intent, "seconds": call.seconds}
        told = json.dumps([call.tool, call.seconds])
        self._note(call, "begun", text=told, committed=call.reference is not None)
        params: JSONObject = {"name": call.tool, "arguments": arguments}
        if call.is_keyed:
            params["_meta"] = {_KEY: call.intent}
        await self._read(call, await self._in_rounds(bridge, call, params))

    async def _ask_for_result(self, bridge: Bridge, call: Call) -> None:
        if self._chance.random() < 0.1:
            params: JSONObject = {"name": "task_list", "arguments": {}}
            listed = await self._in_rounds(bridge, call, params)
            for reference in _REFERENCE.findall(_text_of(listed)):
                self._log.write("listed", text=reference)
        arguments: JSONObject = {"reference": call.reference}
        if self._chance.random() < 0.5:
            arguments["wait_s"] = round(self._chance.uniform(0.0, 1.0), 2)
        if self._chance.random() < 0.2:  # it was told not to
            arguments |= {
                "answer": BY_A_MODEL,
                "inputResponses": {"name": {"action": "accept", "content": {"name": BY_A_MODEL}}},
            }
        await self._read(
            call, await self._in_rounds(bridge, call, {"name": "task_result", "arguments": arguments})
        )

    async def _in_rounds(self, bridge: Bridge, call: Call, params: JSONObject) -> JSONObject:
        """The result, after what it asks of a host of 2026-07-28."""
        limit_s = self._order.limit_s * 1.3**call.given_up * self._chance.uniform(0.7, 1.3)
        wants = self._chance.random() < 0.7
        more: JSONObject = {}
        while True:
            result = await bridge.request("tools/call", {**params, **more}, limit_s, wants_progress=wants)
            if result.get("resultType") != "input_required":
                return result
            answers = {
                key: await bridge.answer(
                    asked["params"]["message"], asked["params"]["requestedSchema"]["required"]
                )
                for key, asked in result["inputRequests"].items()
            }
            more = {"inputResponses": answers, "requestState": result["requestState"]}

    async def _read(self, call: Call, result: JSONObject) -> None:
        """What the model makes of a result."""
        text = _text_of(result)
        if result.get("isError"):
            self._note(call, "gone" if "There is no call" in text else "error", text=text)
        elif "is still running" in text:
            # Whether it said that the reference is known to later bridges.
            is_known = "has made no task of it yet" not in text
            self._note(call, "promised", text=_REFERENCE.findall(text)[0], committed=is_known)
            await asyncio.sleep(self._chance.uniform(0.0, _THINKS_S))
        else:
            made = json.loads(text)
            if made["intent"] != call.intent:
                self._note(call, "error", text=f"the result of {made['intent']}")
            self._note(call, "delivered", made=made["made"])


def _learn(call: Call, line: Line) -> None:
    match line.what:
        case "promised":
            call.reference = line.text
        case "gone":
            call.reference = None
        case "given up":
            call.given_up += 1
        case "delivered" | "unknown" | "error":
            call.is_over = True


def _text_of(result: JSONObject) -> str:
    """The first text of a result. A note of the bridge may follow it."""
    return str(result["content"][0]["text"])


if __name__ == "__main__":
    asyncio.run(Host(Order(**json.loads(sys.argv[1]))).run())
