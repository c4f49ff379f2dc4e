"""The tables of ``docs/hosts/index.md``, written between markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from .cells import CASES, GENERATIONS
from .recipes import PAGES, Recipe

__all__ = ["INDEX", "cell_table", "lines_table", "row", "write"]

INDEX: Final = PAGES / "index.md"
LINES: Final = "lines"
CELLS: Final = "cells"


def lines_table(recipes: Iterable[Recipe]) -> str:
    """Framework, line to add, setting to raise."""
    rows = (
        f"| {link(recipe)} | `{recipe.line}` | {as_setting(recipe.setting)} |" for recipe in by_title(recipes)
    )
    return "\n".join(["| framework | line to add | setting to raise |", "|---|---|---|", *rows])


def cell_table(rows: Mapping[str, str]) -> str:
    """What was run, from rows by the title of their framework."""
    head = ["framework", *GENERATIONS, "versions", "date"]
    return "\n".join(
        [
            f"| {' | '.join(head)} |",
            "|" + "---|" * len(head),
            *(rows[one] for one in sorted(rows, key=str.lower)),
        ]
    )


def row(recipe: Recipe, cells: Mapping[tuple[str, str], str], versions: str, date: str) -> str:
    """One recipe in the table of cells."""
    told = [
        ", ".join(cells.get((generation, case), "not run") for case in CASES) for generation in GENERATIONS
    ]
    return f"| {' | '.join([recipe.title, *told, versions, date])} |"


def link(recipe: Recipe) -> str:
    return f"[{recipe.title}]({recipe.page.name})" if recipe.page.exists() else recipe.title


def as_setting(text: str) -> str:
    return text if text == "none" else f"`{text}`"


def by_title(recipes: Iterable[Recipe]) -> list[Recipe]:
    return sorted(recipes, key=lambda recipe: recipe.title.lower())


def write(recipes: Iterable[Recipe], rows: Mapping[str, str], page: Path = INDEX) -> None:
    """Write both tables. The rows of recipes that were not run now stay as they are."""
    text = page.read_text(encoding="utf-8")
    known = {recipe.title for recipe in recipes}
    earlier = {
        title: line
        for line in between(text, CELLS).splitlines()[2:]
        if (title := line.strip("| ").partition(" | ")[0]) in known
    }
    text = replaced(text, LINES, lines_table(recipes))
    text = replaced(text, CELLS, cell_table({**earlier, **rows}))
    page.write_text(text, encoding="utf-8")


def between(text: str, name: str) -> str:
    found = re.search(pattern(name), text, flags=re.DOTALL)
    assert found is not None, f"the page has no markers of {name}"
    return found[2].strip()


def replaced(text: str, name: str, table: str) -> str:
    return re.sub(
        pattern(name), lambda found: f"{found[1]}\n\n{table}\n\n{found[3]}", text, count=1, flags=re.DOTALL
    )


def pattern(name: str) -> str:
    return rf"(<!-- {name} -->)(.*?)(<!-- end of {name} -->)"
