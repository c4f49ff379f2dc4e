"""Packages of npm, in folders of the user's cache that are made once and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Final

import platformdirs

from tests._legacy_installs import NotInstalled, kept, run

__all__ = ["NODE", "node", "packages"]

FOLDER: Final = platformdirs.user_cache_path("mcp-tasks-client-tests", appauthor=False) / "npm"
NODE: Final = "node@26.10.0"
"""Node itself is a package: for what wants a newer one than the machine has."""


def packages(*names: str) -> Path:
    """The folder that has ``node_modules`` with packages, each named with its version.

    Raises:
        NotInstalled: There is no npm, or the packages cannot be had.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstalled("there is no node, or no npm")

    def make(folder: Path) -> None:
        folder.mkdir()
        # Of its own, else npm looks for one in the folders above.
        (folder / "package.json").write_text(json.dumps({"name": "hosts", "private": True}))
        quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        soon = ["--fetch-retries=1", "--fetch-timeout=60000"]
        run([npm, "install", "--prefix", str(folder), *quiet, *soon, *names])

    contents = " ".join(names)
    return kept(FOLDER / hashlib.sha256(contents.encode()).hexdigest()[:12], contents, make)


def node() -> Path:
    """The program of a Node that is new enough for every package.

    Raises:
        NotInstalled: As from :func:`packages`.
    """
    return packages(NODE) / "node_modules" / "node" / "bin" / "node"
