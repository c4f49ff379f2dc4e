"""``python -m tests.campaigns.versions``: run the matrix, and print a line for each case."""

from __future__ import annotations

import argparse

from tests._legacy_installs import NotInstalled

from .matrix import MATRIX, run_case, serve


def main() -> int:
    """Run it. Returns 1 if a case failed or could not be installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.versions", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    given = parser.parse_args()
    failed = 0
    for case in MATRIX:
        if given.only not in str(case):
            continue
        try:
            with serve(case.way) as url:
                wrong = run_case(case, url)
        except NotInstalled as error:
            wrong = f"not installed: {error}"
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'pass'}  {case}{f': {wrong}' if wrong else ''}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
