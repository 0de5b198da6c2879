"""SIGINT, SIGTERM and SIGCHLD as something a loop can wait for.

A handler only counts; the wait is a `select` on a wakeup socket, so that nothing can arrive
between looking and sleeping, and an idle supervisor uses no processor.
"""

import select
import signal
import socket
from types import FrameType, TracebackType
from typing import Self


class Signals:
    """Counts stop signals while it is entered; must be used in the main thread."""

    def __init__(self) -> None:
        self.stops = 0
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGINT, self._stop),
                (signal.SIGTERM, self._stop),
                (signal.SIGCHLD, self._noticed),
            )
        }
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._reader.close()
        self._writer.close()

    def wait(self, seconds: float) -> None:
        """Sleep until a signal comes, at most `seconds`."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        if ready:
            self._reader.recv(4096)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stops += 1

    def _noticed(self, number: int, frame: FrameType | None) -> None:
        """The wakeup socket has already been written to."""
