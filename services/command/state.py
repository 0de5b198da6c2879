"""The state directory of one `orca up`: who holds it, what runs, where its logs are.

DIR/lock             locked for as long as the supervisor lives; the lock dies with it
DIR/pid              the supervisor's process id
DIR/processes.json   the rows of `orca ps`, replaced as a whole
DIR/logs/            one file for each process
DIR/redis/           the embedded server's append-only file
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Row:
    """One process of a running stack, as `orca ps` shows it."""

    service: str
    index: int
    pid: int
    started: float
    url: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class StateDir:
    """The paths of a state directory. Reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.redis = self.path / "redis"

    def log(self, service: str, index: int) -> Path:
        return self.path / "logs" / f"{service}-{index}.log"

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make the directory ours until the block ends.

        Raises:
            SettingsError: another `orca up` holds it, or it cannot be written.
        """
        try:
            for folder in (self.path, self.path / "logs", self.redis):
                folder.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a")
        except OSError as error:
            raise SettingsError(
                f"cannot use the state directory {self.path}: {error.strerror}; choose another --state-dir"
            ) from None
        with lock:
            self._take(lock.fileno())
            (self.path / "pid").write_text(f"{os.getpid()}\n")
            self.write([])
            try:
                yield
            finally:
                (self.path / "processes.json").unlink(missing_ok=True)
                (self.path / "pid").unlink(missing_ok=True)

    def _take(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = self.pid()
            holder = f"process {pid}" if pid else "another process"
            raise SettingsError(
                f"{self.path} is in use by `orca up` ({holder}); stop it, or choose another --state-dir"
            ) from None

    def pid(self) -> int | None:
        """The supervisor's process id, or None where nothing runs."""
        try:
            return int((self.path / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def write(self, rows: Sequence[Row]) -> None:
        """Replace the rows; a reader sees the old ones or the new ones."""
        draft = self.path / "processes.json.new"
        draft.write_text(json.dumps([row.to_dict() for row in rows]) + "\n")
        draft.replace(self.path / "processes.json")

    def read(self) -> list[Row] | None:
        """The rows of the stack that holds this directory, or None where none does."""
        if not self._is_held():
            return None
        try:
            rows = json.loads((self.path / "processes.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return [Row(**row) for row in rows]

    def _is_held(self) -> bool:
        try:
            with (self.path / "lock").open("a") as lock:
                fcntl.flock(lock.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False
