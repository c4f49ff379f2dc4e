"""``python -m tests.frameworks [NAME ...] [--page]``: run the recipes, and print a table of what they did."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests._legacy_installs import NotInstalled

from .cells import CASES, GENERATIONS, CellServer, Failed, run_cell, serving
from .page import cell_table, row, write
from .recipes import Recipe, installed, recipes, today, versions


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them. Returns 1 if a cell failed or could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.frameworks", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help="recipes to run; none is all")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/hosts/index.md")
    given = parser.parse_args(arguments)
    there = recipes()
    unknown = set(given.names) - {recipe.name for recipe in there}
    if unknown:
        parser.error(f"no such recipe: {', '.join(sorted(unknown))}")
    chosen = [recipe for recipe in there if not given.names or recipe.name in given.names]

    rows: dict[str, str] = {}
    failed = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(serving(generation, folder)) for generation in GENERATIONS]
        for recipe in chosen:
            try:
                python = installed(recipe)
            except NotInstalled as error:
                print(f"FAIL  {recipe.name}: not installed: {error}", flush=True)
                failed += 1
                continue
            cells = run_recipe(recipe, python, servers, folder)
            failed += sum(told == "no" for told in cells.values())
            rows[recipe.title] = row(recipe, cells, versions(recipe, python), today())
    print(cell_table(rows))
    if given.page:
        write(there, rows)
    return int(failed > 0)


def run_recipe(
    recipe: Recipe, python: Path, servers: Sequence[CellServer], folder: Path
) -> dict[tuple[str, str], str]:
    """All cells of one, one after another."""
    cells: dict[tuple[str, str], str] = {}
    for server in servers:
        for case in CASES:
            own = folder / recipe.name / server.generation / case
            own.mkdir(parents=True)
            began = time.monotonic()
            try:
                told, why = run_cell(recipe, python, server, case, own), ""
            except Failed as error:
                told, why = "no", f"\n{error}"
            cells[server.generation, case] = told
            took = time.monotonic() - began
            cell = f"{recipe.name}, {server.generation}, {case} ({took:.0f} s)"
            print(f"{'FAIL' if why else 'pass'}  {cell}{why}", flush=True)
    return cells


if __name__ == "__main__":
    raise SystemExit(main())
