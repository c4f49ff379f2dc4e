"""The hosts: programs of others that start the command of a bridge, and whose model, or script, calls tools.

A host runs with a home of its own, a bare environment, and no way to any machine but this one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil

from tests._legacy_installs import node_modules, python_with_legacy_sdk

from . import npm
from .scripted_model import ScriptedModel, scripted_model
from .turns import Turn, next_turn

__all__ = ["HOSTS", "Host", "Seen", "Talk"]

LIMIT_S: Final = 300.0
"""Agents take some ten seconds to start, and minutes on a busy machine with cold caches."""

LOOK_S: Final = 0.05
HERE: Final = Path(__file__).parent
CODEX: Final = "@openai/codex@0.171.0"
OPENCODE: Final = "opencode-ai@1.18.33"
INSPECTOR: Final = "@modelcontextprotocol/inspector@2.12.0"
NAME: Final = "b"
"""The bridge in each host's configuration."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A tool result that the host has shown to its model, or printed."""

    text: str
    """Its texts, or the message of the error that came in its place."""

    is_error: bool | None
    """``None`` where the host does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a host is to behave, as far as it can be told.

    Attributes:
        limit_s: The limit of each call; the host's own if ``None``.
        patient: Progress starts the limit anew.
        answers: What the host's person enters in a form, by field; ``None`` if nobody is to be asked.
    """

    limit_s: float | None = None
    patient: bool = False
    answers: Mapping[str, str] | None = None


@dataclass
class Talk:
    """A host that plays turns, in a process, or in one for each turn.

    Attributes:
        turns: Those to play.
        bridge: The command that the host starts its server with.
        folder: The home of the host.
        setting: How the host behaves.
        seen: What the model was shown, oldest first; complete once the host has ended.
        asked: The messages of the forms that the host was asked to fill in.
        offered: The tools that the host was offered.
        out: What the host has printed, on stdout.
        err: Likewise on stderr, that of the bridge included where the host passes it on.
        codes: The exit codes of its processes; a signal's number is negative.
        model: Whoever decides what to call, in hosts that have a model.
    """

    host: Host
    turns: Sequence[Turn]
    bridge: Sequence[str]
    folder: Path
    setting: Setting
    seen: list[Seen] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)
    out: str = ""
    err: str = ""
    codes: list[int] = field(default_factory=list)
    model: ScriptedModel | None = None
    process: subprocess.Popen[bytes] | None = None
    _family: dict[int, psutil.Process] = field(default_factory=dict)

    def start(self) -> None:
        """Start the process that plays the next turn, or all of them."""
        command = self.host.command(self)
        number = len(self.codes)
        with self._file(number, "out").open("wb") as out, self._file(number, "err").open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.host.environment(self),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,  # a Ctrl-C in the terminal is for pytest alone
            )
        assert self.process.stdin is not None
        with self.process.stdin as stdin, suppress(BrokenPipeError):
            stdin.write("".join(f"{one}\n" for one in (self.setting.answers or {}).values()).encode())

    def finish(self) -> Talk:
        """Wait until all turns are played, or the host has ended for another reason."""
        while self._goes_on():
            pass
        return self

    def until(self, holds: Callable[[], object]) -> None:
        """Return once something holds, while the host plays."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert self.process is not None
            assert self.process.poll() is None or self._goes_on(), f"the host has ended:\n{self.told()}"
            assert time.monotonic() < deadline, f"not seen in time:\n{self.told()}"
            time.sleep(LOOK_S)

    def has_shown(self, text: str) -> bool:
        """True if the model was shown a text, or the host has printed it, by now."""
        shown = [] if self.model is None else self.model.shown
        return any(text in one for one in (self.out, read(self._file(len(self.codes), "out")), *shown))

    def kill(self) -> None:
        """End the host by SIGKILL, with all its processes. The bridge goes on until it sees that."""
        assert self.process is not None
        for one in self.family():
            if not self._is_bridge(one):
                one.kill()
        self.process.kill()
        self._wait()

    def bridges(self) -> list[psutil.Process]:
        """The processes of the bridge: those of the host that have its arguments."""
        return [one for one in self.family() if self._is_bridge(one)]

    def kill_bridge(self) -> None:
        """End the bridge by SIGKILL."""
        found = self.bridges()
        assert found, f"the host runs no bridge:\n{self.told()}"
        for one in found:
            one.kill()

    def kill_server(self) -> None:
        """End the server that is a command of the bridge's by SIGKILL, with all its processes."""
        found = [below for one in self.bridges() for below in one.children(recursive=True)]
        assert found, f"the bridge runs no server:\n{self.told()}"
        for one in found:
            one.kill()

    def family(self) -> list[psutil.Process]:
        """The living processes below the host, and those that it has left behind."""
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):
                for one in psutil.Process(self.process.pid).children(recursive=True):
                    self._family[one.pid] = one
        return [one for one in self._family.values() if one.is_running() and one.status() != "zombie"]

    def close(self) -> None:
        """End all of it that still runs."""
        family = self.family()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()

    def told(self) -> str:
        """The end of what the host has printed, for the message of a failure."""
        number = len(self.codes)
        texts = [self.out, self.err, *(read(self._file(number, name)) for name in ("out", "err"))]
        return "\n".join(text[-3000:] for text in texts if text)

    def _goes_on(self) -> bool:
        """Wait for the end of a process, and start that of the next turn. False if there is none."""
        self._wait()
        if self.codes[-1] < 0 or not self.host.has_left(self):
            return False
        self.start()
        return True

    def _wait(self) -> None:
        assert self.process is not None
        number = len(self.codes)
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the host has no end:\n{self.told()}") from None
        out, err = (read(self._file(number, name)) for name in ("out", "err"))
        self.out, self.err = self.out + out, self.err + err
        self.codes.append(code)
        self.host.read(self, out, err)

    def _file(self, number: int, name: str) -> Path:
        return self.folder / f"{number}-{name}.txt"

    def _is_bridge(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            # `env` and the like, which only start another program, have become that program.
            # A server that is a command of the bridge's has the end of the line.
            arguments = process.cmdline()[1:]
            return "bridge" in arguments and [*self.bridge[-len(arguments) :]] == arguments
        return False


class Host(ABC):
    """A host.

    Attributes:
        name: In the tests' names.
        is_limited: The time of its calls can be limited.
        shortest_limit_s: The shortest limit that leaves time for the start of its server.
        is_moved_by_progress: Progress starts that limit anew, if the host is patient.
        is_always_patient: It is patient, whatever the setting.
        can_be_asked: A person can answer a form there.
        always_declares: It declares that it can be asked, whether a person is there or not.
        tells_that_it_gave_up: It sends ``notifications/cancelled`` when the time of a call is over.
        has_a_bridge_a_turn: Its process, and so its bridge, ends with each turn.
    """

    name: ClassVar[str]
    is_limited: ClassVar[bool] = True
    shortest_limit_s: ClassVar[float] = 3.0
    is_moved_by_progress: ClassVar[bool] = False
    is_always_patient: ClassVar[bool] = False
    can_be_asked: ClassVar[bool] = False
    always_declares: ClassVar[bool] = False
    tells_that_it_gave_up: ClassVar[bool] = True
    has_a_bridge_a_turn: ClassVar[bool] = False

    @abstractmethod
    def prepare(self) -> None:
        """Install it, unless it is.

        Raises:
            NotInstalled: It cannot be had.
        """

    @abstractmethod
    def command(self, talk: Talk) -> list[str]:
        """The command of the next process, whose configuration is written."""

    @abstractmethod
    def read(self, talk: Talk, out: str, err: str) -> None:
        """Note in a talk what a process has printed."""

    def has_left(self, talk: Talk) -> bool:
        """True if the next turn is for another process."""
        return False

    def environment(self, talk: Talk) -> dict[str, str]:
        """The environment of its processes, which hosts hand on to their servers, or not."""
        nobody = "http://127.0.0.1:9"  # whoever goes to another machine is refused at once
        return {
            "HOME": str(talk.folder),
            "PATH": os.pathsep.join([str(Path(program("node")).parent), "/usr/bin", "/bin"]),
            "LANG": "C.UTF-8",
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), nobody),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
        }

    @contextmanager
    def talk(
        self, turns: Sequence[Turn], bridge: Sequence[str], folder: Path, **setting: Any
    ) -> Iterator[Talk]:
        """The host, started, for the length of the block.

        Args:
            turns: What is called, one after the other.
            bridge: The command that the host starts its server with.
            folder: The home of the host; made if it is not there.
            setting: The fields of :class:`Setting`.

        Raises:
            NotInstalled: The host cannot be had.
        """
        self.prepare()
        folder.mkdir(exist_ok=True)
        talk = Talk(self, turns, bridge, folder, Setting(**setting))
        with ExitStack() as ends:
            ends.callback(talk.close)
            if isinstance(self, Agent):
                talk.model = ends.enter_context(scripted_model(turns))
            talk.start()
            yield talk


class Scripted(Host):
    """A host that is a program of ours on an SDK of others: it prints lines of JSON."""

    can_be_asked = True

    def options(self, talk: Talk, **more: Any) -> str:
        limit_s = talk.setting.limit_s
        return json.dumps(
            {
                **more,
                "bridge": talk.bridge,
                "turns": [turn.document() for turn in talk.turns],
                "limit_ms": None if limit_s is None else round(limit_s * 1000),
                "patient": talk.setting.patient,
                "answers": talk.setting.answers,
            }
        )

    def read(self, talk: Talk, out: str, err: str) -> None:
        for line in out.splitlines():
            match json.loads(line):
                case {"listed": names}:
                    talk.offered = names
                case {"asked": message}:
                    talk.asked.append(message)
                case {"shown": text, "is_error": is_error}:
                    talk.seen.append(Seen(text, is_error))
                case {"failed": message}:
                    talk.seen.append(Seen(message, True))


class TypeScriptSdk(Scripted):
    name = "typescript"
    is_moved_by_progress = True

    def prepare(self) -> None:
        node_modules()

    def command(self, talk: Talk) -> list[str]:
        options = self.options(talk, installed=str(node_modules()))
        return [program("node"), str(HERE / "ts_client.mjs"), options]


class PythonSdk1(Scripted):
    name = "mcp-1"
    tells_that_it_gave_up = False

    def prepare(self) -> None:
        python_with_legacy_sdk()

    def command(self, talk: Talk) -> list[str]:
        return [str(python_with_legacy_sdk()), str(HERE / "sdk_1_client.py"), self.options(talk)]


class Agent(Host):
    """A host whose model is the scripted one."""

    def read(self, talk: Talk, out: str, err: str) -> None:
        assert talk.model is not None
        assert not talk.model.missing, f"the model was not offered {talk.model.missing}:\n{talk.told()}"
        talk.seen = [Seen(text, None) for text in talk.model.shown]


class Codex(Agent):
    """``codex exec``."""

    name = "codex"
    always_declares = True  # and declines each form by itself

    def prepare(self) -> None:
        npm.packages(CODEX)

    def command(self, talk: Talk) -> list[str]:
        assert talk.model is not None
        command, *arguments = map(json.dumps, talk.bridge)
        home = talk.folder / "codex"
        home.mkdir(exist_ok=True)
        limit = "" if talk.setting.limit_s is None else f"tool_timeout_sec = {talk.setting.limit_s}"
        (home / "config.toml").write_text(
            f"""\
model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[model_providers.scripted]
name = "scripted"
base_url = "{talk.model.url}"
wire_api = "responses"

[mcp_servers.{NAME}]
command = {command}
args = [{", ".join(arguments)}]
required = true
startup_timeout_sec = {LIMIT_S}
{limit}
"""
        )
        start = [
            program("node"),
            str(npm.packages(CODEX) / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"),
        ]
        return [*start, "exec", "--skip-git-repo-check", "--ephemeral", "Do your work."]

    def environment(self, talk: Talk) -> dict[str, str]:
        return super().environment(talk) | {"CODEX_HOME": str(talk.folder / "codex")}


class Opencode(Agent):
    """``opencode run``."""

    name = "opencode"
    shortest_limit_s = 30.0
    is_moved_by_progress = True
    is_always_patient = True

    def prepare(self) -> None:
        npm.packages(OPENCODE)

    def command(self, talk: Talk) -> list[str]:
        assert talk.model is not None
        limit_s = LIMIT_S if talk.setting.limit_s is None else talk.setting.limit_s
        models = {"scripted": {"name": "scripted", "tool_call": True}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "scripted",
            "options": {"baseURL": talk.model.url, "apiKey": "none"},
            "models": models,
        }
        server = {
            "type": "local",
            "command": [*talk.bridge],
            "enabled": True,
            "timeout": round(limit_s * 1000),
        }
        config = {
            "$schema": "https://opencode.ai/config.json",
            "model": "scripted/scripted",
            "small_model": "scripted/scripted",
            "provider": {"scripted": provider},
            "mcp": {NAME: server},
            "permission": {"*": "allow"},
            "autoupdate": False,
            "share": "disabled",
        }
        (talk.folder / "opencode.json").write_text(json.dumps(config))
        return [
            str(npm.packages(OPENCODE) / "node_modules" / ".bin" / "opencode"),
            "run",
            "Do your work.",
        ]

    def environment(self, talk: Talk) -> dict[str, str]:
        return super().environment(talk) | {
            "PWD": str(talk.folder),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        }


class Command(Host):
    """A command that calls one tool, prints the result as JSON, and ends."""

    has_a_bridge_a_turn = True

    def has_left(self, talk: Talk) -> bool:
        return self.next_turn(talk) is not None

    def next_turn(self, talk: Talk) -> Turn | None:
        return next_turn(talk.turns, [one.text for one in talk.seen])

    def config(self, talk: Talk) -> Path:
        """A file with the entry that hosts have for a server."""
        command, *arguments = talk.bridge
        path = talk.folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {NAME: {"command": command, "args": arguments}}}))
        return path

    def read(self, talk: Talk, out: str, err: str) -> None:
        try:
            printed = json.loads(out[out.index("{") :])
            result = printed.get("result", printed)
            text = "\n".join(part.get("text", "") for part in result["content"])
        except (ValueError, KeyError):
            talk.seen.append(Seen(" ".join(f"{out} {err}".split()), True))  # some wrap their lines
        else:
            talk.seen.append(Seen(text, bool(result.get("isError", result.get("is_error")))))


class FastMcp(Command):
    """``fastmcp call``."""

    name = "fastmcp"
    always_declares = True
    shortest_limit_s = 20.0
    can_be_asked = True

    def prepare(self) -> None:
        """It is a dependency of the tests."""

    def command(self, talk: Talk) -> list[str]:
        turn = self.next_turn(talk)
        assert turn is not None
        start = [str(Path(sys.executable).with_name("fastmcp")), "call", str(self.config(talk)), turn.tool]
        limit = [] if talk.setting.limit_s is None else ["--timeout", str(talk.setting.limit_s)]
        return [*start, "--input-json", json.dumps(turn.arguments), "--json", *limit]

    def environment(self, talk: Talk) -> dict[str, str]:
        return super().environment(talk) | {"FASTMCP_CHECK_FOR_UPDATES": "off"}


class Inspector(Command):
    """Inspector's command."""

    name = "inspector"
    is_limited = False

    def prepare(self) -> None:
        npm.packages(INSPECTOR)
        npm.node()

    def command(self, talk: Talk) -> list[str]:
        turn = self.next_turn(talk)
        assert turn is not None
        launcher = npm.packages(INSPECTOR) / "node_modules" / "@modelcontextprotocol" / "inspector"
        start = [str(npm.node()), str(launcher / "clients" / "launcher" / "build" / "index.js"), "--cli"]
        server = [
            "--config",
            str(self.config(talk)),
            "--server",
            NAME,
            "--connect-timeout",
            str(round(LIMIT_S * 1000)),
        ]
        call = ["--method", "tools/call", "--tool-name", turn.tool]
        arguments = ["--tool-args-json", json.dumps(turn.arguments)]
        return [*start, *server, *call, *arguments, "--format", "json", "--quiet"]


def program(name: str) -> str:
    found = shutil.which(name)
    return name if found is None else found


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


HOSTS: Final[Sequence[Host]] = (
    TypeScriptSdk(),
    PythonSdk1(),
    FastMcp(),
    Inspector(),
    Codex(),
    Opencode(),
)
