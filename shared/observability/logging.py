"""Structured logs: one JSON object a line on stderr.

`extra={"request_id": ..., "iteration_id": ..., "engine_id": ...}` are the field names used.
Prompts, answers and keys are never logged.
"""

import json
import logging
import sys
import time
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, its `extra` fields included."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "service": self._service,
            "message": record.getMessage(),
        }
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def configure(service: str, level: str = "info") -> None:
    """Send all logs of this process to stderr as JSON. Called once, from `__main__`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "filelock", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class RateLimit:
    """Lets one message through per `seconds`, so that a fault cannot flood the log."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._last: dict[str, float] = {}

    def ready(self, topic: str) -> bool:
        """True once per interval and topic."""
        now = time.monotonic()
        if now - self._last.get(topic, float("-inf")) < self._seconds:
            return False
        self._last[topic] = now
        return True
