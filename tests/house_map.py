"""``python -m tests.house_map [FOLDER]``: the modules of the package, and the concept of each.

The concept is the first sentence of the module's docstring, so that it is written once.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path
from typing import Final

import mcp_tasks_client

__all__ = ["concepts"]

ROOT: Final = Path(mcp_tasks_client.__file__).parent


def concepts() -> dict[str, str]:
    """The first sentence of each module and folder, by its path. That of a folder ends with ``/``."""
    return {_name(path): _first_sentence(path) for path in sorted(ROOT.rglob("*.py"), key=_order)}


def _name(path: Path) -> str:
    below = path.relative_to(ROOT)
    return f"{below.parent.as_posix()}/" if path.stem == "__init__" else below.with_suffix("").as_posix()


def _order(path: Path) -> tuple[str, bool, str]:
    below = path.relative_to(ROOT)
    return below.parent.as_posix(), path.stem != "__init__", path.stem


def _first_sentence(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.split(r"(?<=\.)\s|\n\n", said, maxsplit=1)[0].replace("\n", " ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default="", help="such as engine, or journal/sqlite")
    wanted = parser.parse_args().folder.strip("/")
    for name, concept in concepts().items():
        if name.startswith(f"{wanted}/") or not wanted:
            print(
                f"\n{name}: {concept}" if name.endswith("/") else f"  {name.rpartition('/')[2]:20} {concept}"
            )


if __name__ == "__main__":
    main()
