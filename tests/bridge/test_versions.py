"""What is no call passes as it came, in the words of each host's version; introductions and errors."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_tasks_client import SqliteJournal
from mcp_tasks_client.bridge import introduction
from mcp_tasks_client.protocol import JSONObject
from tests.kit.current_server import DISCOVERED, Fault

from .behind import RICH, SERVERS, Wire, behind, replying
from .memory_host import CURRENT, OLDER, OLDEST, VERSIONS, MemoryHost, Refused
from .world import bridged

pytestmark = pytest.mark.anyio

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
COMPLETE: JSONObject = {"resultType": "complete"}


def introduced(**said: Any) -> JSONObject:
    return {**DISCOVERED, **said}


def without_envelope(result: JSONObject) -> JSONObject:
    dropped = ("resultType", "ttlMs", "cacheScope", "_meta")
    return {name: value for name, value in result.items() if name not in dropped}


# ── other requests ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_result_passes_with_all_its_fields(version: str) -> None:
    read = {"contents": [{"uri": "a:b", "text": "t", "x-own": [1, {"y": None}]}], "x-top": {"z": 0.5}}
    wire = replying({"resources/read": {**COMPLETE, **read, "ttlMs": 5, "cacheScope": "public"}})
    host = MemoryHost(version)
    async with bridged(wire, host):
        result = await host.request("resources/read", {"uri": "a:b", "x-asked": True})
    assert without_envelope(result) == read
    assert (result.get("ttlMs") == 5) or version != CURRENT, "the server's own words about its result"
    (asked,) = wire.of("resources/read")
    assert asked["x-asked"] is True


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_error_passes_with_code_and_data(version: str) -> None:
    wire, host = replying({"prompts/get": Fault(-32050, "no quota", {"a": [1]})}), MemoryHost(version)
    async with bridged(wire, host):
        with pytest.raises(Refused) as refused:
            await host.request("prompts/get", {"name": "p"})
    assert (refused.value.code, refused.value.message, refused.value.data) == (-32050, "no quota", {"a": [1]})


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_method_that_nobody_knows_passes_and_so_does_the_refusal(version: str) -> None:
    wire, host = replying({"x/known": {**COMPLETE, "x": 1}}), MemoryHost(version)
    async with bridged(wire, host):
        assert without_envelope(await host.request("x/known", {"y": 2})) == {"x": 1}
        with pytest.raises(Refused) as refused:
            await host.request("x/unknown")
    assert refused.value.code == -32601


@pytest.mark.parametrize("version", VERSIONS)
async def test_pages_of_a_list_pass(version: str) -> None:
    def page(method: str, params: JSONObject) -> JSONObject:
        number = int(params.get("cursor", "0"))
        more = {"nextCursor": str(number + 1)} if number < 2 else {}
        return {**COMPLETE, "tools": [{"name": f"t{number}", "inputSchema": {}, "x-own": number}], **more}

    wire, host = replying({"tools/list": page}), MemoryHost(version)
    async with bridged(wire, host, answer_within_s=1):
        names, cursor = [], {}
        while True:
            result = await host.request("tools/list", cursor)
            names.append([one["name"] for one in result["tools"]])
            if "nextCursor" not in result:
                break
            cursor = {"cursor": result["nextCursor"]}
    assert names == [["t0"], ["t1"], ["t2", "task_result", "task_list", "task_cancel"]]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("method", [*LISTS][1:])
async def test_a_list_that_the_server_lacks_is_empty(version: str, server: str, method: str) -> None:
    host = MemoryHost(version)
    async with behind(server) as wire, bridged(wire, host):
        assert without_envelope(await host.request(method)) == {LISTS[method]: []}


@pytest.mark.parametrize("method", [*LISTS])
async def test_a_list_that_the_server_refuses_is_not_empty(method: str) -> None:
    wire, host = replying({method: Fault(-32050, "no quota")}), MemoryHost()
    async with bridged(wire, host):
        with pytest.raises(Refused, match="no quota"):
            await host.request(method)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "method", ["tasks/get", "tasks/list", "tasks/cancel", "tasks/result", "tasks/update"]
)
async def test_there_are_no_tasks_in_front(version: str, method: str) -> None:
    host = MemoryHost(version)
    async with behind("2025-11-25") as wire, bridged(wire, host):
        assert "tasks" not in host.introduction["capabilities"]
        assert "tasks" not in json.dumps(host.introduction["capabilities"].get("extensions", {}))
        with pytest.raises(Refused) as refused:
            await host.request(method, {"taskId": "task-1"})
    assert refused.value.code == -32601
    assert wire.of(method) == []


@pytest.mark.parametrize("version", [OLDEST, OLDER])
async def test_a_ping_needs_no_server(version: str) -> None:
    host = MemoryHost(version)
    async with behind("2026-07-28") as wire, bridged(wire, host):
        wire.is_away = True
        assert await host.request("ping") == {}


@pytest.mark.parametrize("version", [OLDEST, OLDER])
@pytest.mark.parametrize(
    ("method", "params"),
    [("logging/setLevel", {"level": "info"}), ("resources/subscribe", {"uri": "a:b"})],
)
async def test_what_the_server_lacks_is_done_with_nothing(
    version: str, method: str, params: JSONObject
) -> None:
    host = MemoryHost(version)
    async with behind("2025-11-25") as wire, bridged(wire, host):
        assert await host.request(method, params) == {}
    assert wire.of(method) == [params]


# ── notifications ─────────────────────────────────────────────────────────────────────────────────

CHANGED = "notifications/tools/list_changed"


@pytest.mark.parametrize("version", [OLDEST, OLDER])
async def test_notifications_reach_a_host_that_has_introduced_itself(version: str) -> None:
    host, told = MemoryHost(version), list[Callable[..., None]]()
    async with behind("2026-07-28") as wire, bridged(wire, host, told=told):
        await host.request("tools/list")
        told[0](CHANGED, {})
        told[0]("notifications/message", {"level": "info", "data": {"x": 1}})
        await host.until(lambda: host.notified(CHANGED) and host.notified("notifications/message"))
    assert host.notified("notifications/message") == [{"level": "info", "data": {"x": 1}}]


async def test_changed_lists_reach_a_host_that_listens() -> None:
    host, told = MemoryHost(CURRENT), list[Callable[..., None]]()
    async with behind("2026-07-28") as wire, bridged(wire, host, told=told):
        await host.request("tools/list")
        await host.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await host.until(lambda: host.notified("notifications/subscriptions/acknowledged"))
        told[0](CHANGED, {})
        told[0]("notifications/prompts/list_changed", {})
        await host.until(lambda: host.notified(CHANGED))
    assert not host.notified("notifications/prompts/list_changed"), "it has not asked for these"


# ── introductions ─────────────────────────────────────────────────────────────────────────────────

SERVER_INFO = "io.modelcontextprotocol/serverInfo"


def speaking(instructions: str) -> Wire:
    said = introduced(
        instructions=instructions,
        capabilities={"tools": {}, "x-own": {"y": 1}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
        _meta={SERVER_INFO: {"name": "real", "version": "9"}},
    )
    return replying({"server/discover": said})


def name_of(host: MemoryHost) -> Any:
    return host.introduction.get("serverInfo") or host.introduction["_meta"][SERVER_INFO]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_introduction_is_the_servers_also_while_it_is_away(version: str, tmp_path: Path) -> None:
    wire = speaking("Be kind.")
    for is_away in (False, True):
        wire.is_away = is_away
        host = MemoryHost(version)
        async with bridged(wire, host, memory=tmp_path / "servers"):
            assert host.introduction["instructions"] == "Be kind."
            assert name_of(host) == {"name": "real", "version": "9"}
            capabilities = host.introduction["capabilities"]
            assert capabilities["x-own"] == {"y": 1}
            assert "extensions" not in capabilities
    (file,) = (tmp_path / "servers").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("version", VERSIONS)
async def test_everything_is_declared_of_a_server_that_is_not_known(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introduction, "_FIRST_WAIT_S", 0.05)
    wire, host = speaking("Be kind."), MemoryHost(version)
    wire.hold("server/discover")
    async with bridged(wire, host, memory=tmp_path):
        declared = {"completions", "logging", "prompts", "resources", "tools"}
        assert declared <= host.introduction["capabilities"].keys()
        assert name_of(host)["name"] == "mcp-tasks bridge"
        assert "instructions" not in host.introduction
        wire.let_go("server/discover")


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff\xfe", b'{"capabilities": 5}', b'"x"' * 9])
async def test_a_damaged_file_is_ignored_and_replaced(damage: bytes, tmp_path: Path) -> None:
    wire = speaking("Be kind.")
    async with bridged(wire, MemoryHost(), memory=tmp_path):
        pass
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage)
    host = MemoryHost()
    async with bridged(wire, host, memory=tmp_path):
        assert host.introduction["instructions"] == "Be kind."
        await host.until(lambda: file.read_bytes() == whole)


async def test_a_file_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    host = MemoryHost()
    async with bridged(speaking("Be kind."), host, memory=tmp_path / "file" / "servers"):
        assert host.introduction["instructions"] == "Be kind."


async def test_a_host_is_told_that_lists_may_have_changed_with_the_introduction(tmp_path: Path) -> None:
    async with bridged(speaking("Be kind."), MemoryHost(), memory=tmp_path):
        pass
    wire, host = speaking("Be quick."), MemoryHost()
    wire.hold("server/discover")
    async with bridged(wire, host, memory=tmp_path):
        assert host.introduction["instructions"] == "Be kind.", "the file is taken at once"
        wire.let_go("server/discover")
        await host.until(lambda: host.notified(CHANGED))
    later = MemoryHost()
    async with bridged(speaking("Be quick."), later, memory=tmp_path):
        assert later.introduction["instructions"] == "Be quick."
        await later.request("tools/list")
        assert later.notified(CHANGED) == []


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_journal_that_cannot_be_opened_is_an_error_to_each_request(
    version: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").touch()
    host = MemoryHost(version)
    async with (
        behind("2026-07-28") as wire,
        bridged(wire, host, SqliteJournal(tmp_path / "folder" / "journal.db")),
    ):
        for _ in range(2):
            for method, params in (("tools/list", {}), ("tools/call", {"name": "plain"})):
                with pytest.raises(Refused, match="journal"):
                    await host.request(method, params)
        (tmp_path / "folder").unlink()
        assert (await host.call("plain"))["content"] == RICH["content"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "params", [{}, {"name": 5}, {"name": "plain", "arguments": []}, {"name": "plain", "arguments": "x"}]
)
async def test_a_call_that_is_none_is_refused(version: str, params: JSONObject) -> None:
    host = MemoryHost(version)
    async with behind("2026-07-28") as wire, bridged(wire, host):
        with pytest.raises(Refused) as refused:
            await host.request("tools/call", params)
        assert refused.value.code == -32602
        assert (await host.call("plain"))["content"] == RICH["content"]
    assert len(wire.of("tools/call")) == 1


async def test_a_handshake_behind_a_request_of_the_newest_version_is_refused() -> None:
    """A host that probes with server/discover begins its handshake on another pipe."""
    host = MemoryHost(CURRENT)
    async with behind("2026-07-28") as wire, bridged(wire, host):
        params = {"protocolVersion": OLDER, "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}}
        with pytest.raises(Refused) as refused:
            await host.request("initialize", params)
    assert refused.value.code == -32022
