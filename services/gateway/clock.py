"""When things happened to one stream, and what the histograms are told of it."""

import time

from services.gateway.metrics import GatewayMetrics


class StreamClock:
    """Runs on the monotonic clock; a stream that was joined later (`age` > 0) is not measured."""

    def __init__(self, metrics: GatewayMetrics, age: float) -> None:
        self._metrics = metrics
        self._fresh = age == 0.0
        now = time.monotonic()
        self._accepted = now - age
        self._news = now
        self._last_token = now
        self._tokens: dict[int, float] = {}
        self._started = False
        self._ended = False

    @property
    def age(self) -> float:
        return time.monotonic() - self._accepted

    @property
    def silence(self) -> float:
        return time.monotonic() - self._news

    @property
    def without_token(self) -> float:
        return time.monotonic() - self._last_token

    def heard(self) -> None:
        self._news = time.monotonic()

    looked = heard

    def running(self) -> None:
        if not self._started:
            self._started = True
            self._last_token = time.monotonic()
            if self._fresh:
                self._metrics.queue.observe(self.age)

    def token(self, number: int) -> None:
        now = self._last_token = time.monotonic()
        if self._fresh:
            if not self._tokens:
                self._metrics.first_token.observe(now - self._accepted)
            if number in self._tokens:
                self._metrics.inter_token.observe(now - self._tokens[number])
        self._tokens[number] = now

    def end(self) -> None:
        if self._fresh and not self._ended:
            self._ended = True
            self._metrics.duration.observe(self.age)
