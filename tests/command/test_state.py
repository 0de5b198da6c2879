"""The state directory: one holder, rows that are whole, and a lock that dies with its process."""

from pathlib import Path

import pytest

from services.command.state import Row, StateDir
from shared.errors import SettingsError


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    with (
        StateDir(tmp_path).hold(),
        pytest.raises(SettingsError, match="in use"),
        StateDir(tmp_path).hold(),
    ):
        pass


def test_a_directory_is_free_again_after_its_holder(tmp_path: Path) -> None:
    with StateDir(tmp_path).hold():
        pass
    with StateDir(tmp_path).hold():
        assert StateDir(tmp_path).read() == []


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    state, rows = StateDir(tmp_path), [Row("gateway", 0, 7, 1.25, "http://127.0.0.1:8000")]
    with state.hold():
        state.write(rows)
        assert StateDir(tmp_path).read() == rows


def test_rows_of_a_dead_stack_are_not_shown(tmp_path: Path) -> None:
    """Given rows that a killed supervisor left behind, nobody holds the lock, so nothing runs."""
    state = StateDir(tmp_path)
    with state.hold():
        pass
    state.write([Row("engine", 0, 7, 1.0)])
    assert state.read() is None


def test_a_directory_that_cannot_be_made_is_a_settings_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="--state-dir"), StateDir(tmp_path / "file").hold():
        pass
