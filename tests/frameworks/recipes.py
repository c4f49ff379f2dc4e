"""A recipe: a program of ``examples/hosts/`` that says in its head what it needs, and its environment."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import platformdirs
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests._legacy_installs import NotInstalled, interpreter, kept

__all__ = ["PAGES", "ROOT", "Recipe", "installed", "recipes", "versions"]

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = ROOT / "examples" / "hosts"
PAGES: Final = ROOT / "docs" / "hosts"
FOLDER: Final = platformdirs.user_cache_path("mcp-tasks-client-tests", appauthor=False) / "hosts"
INSTALL_LIMIT_S: Final = 600.0
SUFFIX: Final = "_host"
"""A program that is called as its framework would be imported in its place."""

HEAD: Final = re.compile(r"^# /// script\n((?:#(?: .*)?\n)+?)# ///$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program, and its head as a PEP 723 block.

    Attributes:
        name: Of the program and of its page.
        program: The file.
        requires_python: Which versions of Python it may have.
        dependencies: What is installed besides this library.
        longer_than_s: What a call must outlast: the framework's default time-out and a little more.
        line: What a user adds.
        setting: What a user raises.
    """

    name: str
    program: Path
    requires_python: str
    dependencies: tuple[str, ...]
    longer_than_s: int
    line: str
    setting: str

    @classmethod
    def read(cls, program: Path) -> Recipe:
        """The recipe of a program.

        Raises:
            ValueError: Its head is missing, or not whole.
        """
        found = HEAD.search(program.read_text(encoding="utf-8"))
        if found is None:
            raise ValueError(f"{program.name} has no PEP 723 block")
        head: dict[str, Any] = tomllib.loads(re.sub(r"^# ?", "", found[1], flags=re.MULTILINE))
        try:
            own = head["tool"]["recipe"]
            return cls(
                name=program.stem.removesuffix(SUFFIX),
                program=program,
                requires_python=head["requires-python"],
                dependencies=tuple(head["dependencies"]),
                longer_than_s=own["longer-than-s"],
                line=own["line"],
                setting=own["setting"],
            )
        except KeyError as error:
            raise ValueError(f"the head of {program.name} has no {error}") from error

    @property
    def page(self) -> Path:
        """Its page of the documentation."""
        return PAGES / f"{self.name}.md"

    @property
    def restart(self) -> Path:
        """Its program whose agent goes on after a kill, if there is one."""
        return PROGRAMS / f"{self.name}_restart.py"

    @property
    def title(self) -> str:
        """The framework as its page calls it."""
        if not self.page.exists():
            return self.name
        heading = re.search(r"^# (.+)$", self.page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return heading[1] if heading else self.name


def recipes() -> list[Recipe]:
    """All that there are, by name."""
    return [Recipe.read(program) for program in sorted(PROGRAMS.glob(f"*{SUFFIX}.py"))]


def installed(recipe: Recipe) -> Path:
    """The interpreter of a recipe's environment, which is made once and kept.

    This library itself is not in it, so that all checkouts have one: they put themselves on its path.

    Raises:
        NotInstalled: It cannot be made, such as without a network.
    """
    if Version(".".join(map(str, sys.version_info[:3]))) not in SpecifierSet(recipe.requires_python):
        raise NotInstalled(f"it needs Python {recipe.requires_python}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = [*recipe.dependencies, *project["dependencies"]]
    contents = json.dumps([sys.version, sys.base_prefix, *packages])

    def make(folder: Path) -> None:
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--python", str(interpreter(folder)), "install", "--quiet"]
        quiet = ["--disable-pip-version-check", "--retries", "1"]
        run([*pip, *quiet, *packages])

    name = f"{recipe.name}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"
    return interpreter(kept(FOLDER / name, contents, make))


def run(command: Sequence[str]) -> None:
    try:
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_LIMIT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        said = (error.stderr or b"").decode(errors="replace").strip()
        raise NotInstalled(f"{type(error).__name__}: {said[-1000:]}") from error


def versions(recipe: Recipe, python: Path) -> str:
    """What was tried, such as ``framework 1.2.3, mcp 2.3.0, httpx2 2.12.0``."""
    own = [Requirement(one).name for one in recipe.dependencies]
    ask = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version for d in m.distributions()}))"
    )
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    there = json.loads(done.stdout)
    http = "httpx" if there.get("mcp", "").startswith("1.") else "httpx2"
    names = dict.fromkeys((*own, "mcp", http))
    return ", ".join(
        f"{name} {there[plain]}" for name in names if (plain := name.lower().replace("_", "-")) in there
    )


def today() -> str:
    """The date of a run."""
    return time.strftime("%Y-%m-%d", time.gmtime())
