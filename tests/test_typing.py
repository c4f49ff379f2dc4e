"""The public API under a strict type checker, right use and wrong use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_public_api_type_checks_strictly_and_wrong_use_is_rejected(tmp_path: Path) -> None:
    """``typing/api.py`` is never run. A cache of its own keeps the outcome from depending on an old one."""
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", "tests/typing/api.py"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
