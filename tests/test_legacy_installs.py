"""What the legacy servers need is installed once, whole, and by one process."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests._legacy_installs import NotInstalled, kept

LIMIT_S = 20.0


def test_what_is_installed_is_kept(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        assert not folder.exists()
        folder.mkdir()
        made.append(folder)

    assert kept(tmp_path / "it", "1", make) == tmp_path / "it"
    assert kept(tmp_path / "it", "1", make) == tmp_path / "it"
    assert len(made) == 1
    kept(tmp_path / "it", "2", make)
    assert len(made) == 2


def test_what_is_half_made_is_made_anew(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise KeyboardInterrupt

    kept(tmp_path / "it", "1", Path.mkdir)
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path / "it", "2", fail)
    kept(tmp_path / "it", "1", Path.mkdir)
    assert [*(tmp_path / "it").iterdir()] == []


def test_what_cannot_be_made_is_not_tried_again_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise NotInstalled("no network")

    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "this run")
    with pytest.raises(NotInstalled, match="no network"):
        kept(tmp_path / "it", "1", fail)
    with pytest.raises(NotInstalled, match="no network"):
        kept(tmp_path / "it", "1", Path.mkdir)
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "the next run")
    assert kept(tmp_path / "it", "1", Path.mkdir).is_dir()


def test_one_process_at_a_time_makes_it(tmp_path: Path) -> None:
    making, makers = threading.Event(), []

    def make(folder: Path) -> None:
        makers.append(folder)
        making.set()
        later.start()
        time.sleep(0.05)  # the other has come, most likely, and waits
        folder.mkdir()

    later = threading.Thread(target=kept, args=(tmp_path / "it", "1", make))
    kept(tmp_path / "it", "1", make)
    later.join(LIMIT_S)
    assert makers == [tmp_path / "it"]
