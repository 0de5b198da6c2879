"""One group of sequences, followed from the pool to its answer.

TokenEvents come in by `hear` and become pieces at once; a gap, a new subscription or 2 s of
silence makes the supervisor read record and log, so that pub/sub may lose anything. Readers
take pieces at their own pace: a slow one holds nothing up and costs no buffer of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from redis.exceptions import RedisError

from services.gateway.answer import Answer
from services.gateway.clock import StreamClock
from services.gateway.errors import known_code
from services.gateway.group_log import Follower, GroupLog
from shared.channels import request_pool
from shared.channels.request_pool import Attached, Record
from shared.errors import DecodeError, ErrorCode, RequestError
from shared.protocol.request import GenerationRequest
from shared.protocol.token import Event, FinishReason, State, StateEvent, TokenEntry, TokenEvent
from shared.protocol.wire import decode

LOG = logging.getLogger(__name__)
SILENCE_SECONDS = 2.0
"""After this long without news the record is read: the last event is the one nobody misses."""
MAX_BACKLOG = 4096
"""Events kept while the log is being read; more are found in the log again."""
PREFILL_FACTOR = 10
"""A running sequence without a token yet may be silent this many times longer."""
END_PATIENCE = 30.0


class GroupStream:
    """The pieces of one answer, as they come."""

    def __init__(
        self,
        shared: Follower,
        requests: Sequence[GenerationRequest],
        prompts: Sequence[Sequence[int]],
        *,
        age: float = 0.0,
        listening: bool = True,
    ) -> None:
        """Args:
        age: seconds since the group was accepted.
        listening: whether the pool already names this gateway as a listener.
        """
        self._shared = shared
        self.requests = tuple(requests)
        self.group = requests[0].group
        self.answer = Answer(requests, prompts, shared.vocabulary)
        self.failure: RequestError | None = None
        self.done = False
        self.readers = 0
        self.left = False
        """The reader that made the request has left it."""
        self._numbers = {request.id: request.choice for request in requests}
        self._log = GroupLog(shared, requests, prompts)
        self._states = [State.WAITING] * len(requests)
        self._changed = asyncio.Event()
        self._attention = asyncio.Event()
        self._backlog: deque[Event] | None = None
        self._stale = not listening
        self._stopped: list[int] = []
        self._clock = StreamClock(shared.metrics, age)
        if self._stale:
            self._attention.set()

    @property
    def _seen(self) -> list[int]:
        """Log entries read, by choice."""
        return [len(shown) for shown in self._log.shown]

    # -- readers

    async def changed(self, seconds: float) -> bool:
        """Wait for more pieces or the end; False after `seconds` without."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- events

    def hear(self, event: Event) -> None:
        """Take one event from the subscription."""
        if self.done or self.failure:
            return
        if self._backlog is not None:
            if len(self._backlog) < MAX_BACKLOG:
                self._backlog.append(event)
            else:
                self._stale = True
            return
        try:
            self._take(event)
        except RequestError as error:
            self._fail(error)
        except DecodeError as error:
            LOG.error("unreadable token entry: %s", error, extra={"request_id": self.group})
            self._fail(RequestError(ErrorCode.INTERNAL_ERROR, "a token of this answer could not be read"))

    def resubscribed(self) -> None:
        """Anything may have been missed: read the log."""
        self._stale = True
        self._attention.set()

    def _take(self, event: Event) -> None:
        number = self._numbers[event.id]
        self._clock.heard()
        if isinstance(event, TokenEvent):
            if event.index > self._seen[number]:
                self._want_log()
            elif event.index == self._seen[number]:
                self._token(number, event.entry)
            else:
                self._log.check_repeat(number, event)
        else:
            self._state(number, event)

    def _want_log(self) -> None:
        self._stale = True
        self._attention.set()

    def _token(self, number: int, entry: str) -> None:
        self._log.shown[number].append(entry)
        self._states[number] = State.RUNNING
        self._clock.token(number)
        if self.answer.feed(number, decode(TokenEntry, entry)):
            self._stopped.append(number)
            self._attention.set()
        self._notify()

    def _state(self, number: int, event: StateEvent) -> None:
        self._states[number] = event.state
        if event.state == State.RUNNING:
            self._clock.running()
        elif event.state.ended:
            self._ended(number, event.state, event.n_tokens, event.finish_reason, event.code, event.message)

    def _ended(self, number: int, state: State, n_tokens: int, reason: str, code: str, message: str) -> None:
        if self.answer.choices[number].finish_reason:
            return
        if state == State.COMPLETED:
            if self._seen[number] < self._wanted(number, n_tokens):
                self._want_log()
                return
            length = reason == FinishReason.LENGTH
            self.answer.finish(number, FinishReason.LENGTH if length else FinishReason.STOP)
            self._notify()
            if self.answer.complete:
                self._attention.set()
        elif state == State.CANCELLED:
            self._fail(RequestError(ErrorCode.REQUEST_CANCELLED, message or "the request was cancelled"))
        else:
            self._fail(RequestError(known_code(code), message or "the request failed"))

    def _wanted(self, number: int, n_tokens: int) -> int:
        """Log entries to read before a completed choice is done: the first one also where none counts."""
        return max(n_tokens, int(self.requests[number].rendering.prompt_only))

    def _fail(self, error: RequestError) -> None:
        if not self.failure:
            self.failure = error
            self._attention.set()

    # -- supervision

    async def supervise(self) -> None:
        """Watch over the stream until it is done. Runs once, as a task."""
        try:
            while not self.done:
                await self._wait()
                await self._look_after()
        except asyncio.CancelledError:
            raise
        except Exception:
            LOG.exception("stream supervision failed", extra={"request_id": self.group})
            self.failure = RequestError(ErrorCode.INTERNAL_ERROR, "the server failed on this answer")
        finally:
            if not (self.answer.complete or self.failure):
                self.failure = RequestError(
                    ErrorCode.NOT_READY, "the server stopped before this answer was complete"
                )
            self.done = True
            self._notify()

    async def _wait(self) -> None:
        pause = max(0.01, min(SILENCE_SECONDS - self._clock.silence, self._time_left()))
        try:
            async with asyncio.timeout(pause):
                await self._attention.wait()
        except TimeoutError:
            pass
        self._attention.clear()

    async def _look_after(self) -> None:
        while self._stopped:
            await self._end_stopped()
        if not (self.answer.complete or self.failure) and (
            self._stale or self._clock.silence >= SILENCE_SECONDS
        ):
            await self._read_log()
        if not (self.answer.complete or self.failure):
            self._check_limits()
        if self.failure:
            await self._end_all(self.failure)
        if self._stopped:
            self._attention.set()
        elif self.answer.complete or self.failure:
            self._clock.end()
            self.done = True

    def _time_left(self) -> float:
        limit = self.requests[0].timeout_seconds
        return float("inf") if limit is None else limit - self._clock.age

    def _check_limits(self) -> None:
        if self._time_left() <= 0:
            limit = self.requests[0].timeout_seconds
            self._fail(RequestError(ErrorCode.REQUEST_TIMEOUT, f"no end within timeout_seconds ({limit:g})"))
            return
        limit = self._shared.stall_timeout
        if not limit:
            return
        started = any(self._seen)
        if started and self._clock.without_token > limit:
            running = State.RUNNING in self._states
            code = ErrorCode.STALL_TIMEOUT if running else ErrorCode.ENGINE_FAILED
            self._fail(RequestError(code, f"no token came for {limit:g} s"))
        elif State.RUNNING in self._states and self._clock.without_token > limit * PREFILL_FACTOR:
            self._fail(RequestError(ErrorCode.STALL_TIMEOUT, "the prompt was not read in time"))

    async def _end_stopped(self) -> None:
        """Tell the pool of completed stop strings; later tokens are neither shown nor counted."""
        stopped, self._stopped = self._stopped, []
        for number in stopped:
            n_tokens = self.answer.choices[number].n_tokens
            await self._end(self.requests[number], State.COMPLETED, FinishReason.STOP, n_tokens=n_tokens)

    async def _end_all(self, error: RequestError) -> None:
        """A group stands or falls together: what is still open ends with the failure."""
        cancelled = error.code == ErrorCode.REQUEST_CANCELLED
        outcome = State.CANCELLED if cancelled else State.FAILED
        members = zip(self.requests, self.answer.choices, self._states, strict=True)
        await asyncio.gather(
            *(
                self._end(request, outcome, code=error.code, message=error.message)
                for request, choice, state in members
                if not (choice.finish_reason or state.ended)
            )
        )
        if not cancelled:
            LOG.warning(
                "request failed: %s", error.message, extra={"request_id": self.group, "code": error.code}
            )

    async def _end(
        self,
        request: GenerationRequest,
        outcome: State,
        reason: str = "",
        *,
        code: str = "",
        message: str = "",
        n_tokens: int | None = None,
    ) -> None:
        call = request_pool.end(
            self._shared.keys,
            request=request,
            outcome=outcome,
            finish_reason=reason,
            code=code,
            message=message,
            n_tokens=n_tokens,
        )
        try:
            await self._shared.pool.run(call, patience=END_PATIENCE)
        except (RedisError, OSError) as error:
            LOG.error("cannot end a sequence: %s", error, extra={"request_id": request.id})

    # -- the log

    async def _read_log(self) -> None:
        self._stale = False
        self._backlog = deque()
        try:
            while await self._read_pass():
                pass
        except (RedisError, OSError) as error:
            LOG.warning("cannot read a log: %s", error, extra={"request_id": self.group})
            self._stale = True
            await asyncio.sleep(0.2)
        except RequestError as error:
            self._fail(error)
        except DecodeError as error:
            LOG.error("unreadable record or entry: %s", error, extra={"request_id": self.group})
            self._fail(RequestError(ErrorCode.INTERNAL_ERROR, "this answer's log could not be read"))
        finally:
            backlog, self._backlog = self._backlog, None
            self._clock.looked()
            for event in backlog:
                self.hear(event)

    async def _read_pass(self) -> bool:
        """Read every choice's record and log once; True when another pass is needed."""
        found = await self._log.read()
        return self._replay(found)

    def _replay(self, found: dict[int, Attached]) -> bool:
        taken = dict.fromkeys(found, 0)
        for number, attached in found.items():
            self._maybe_ended(number, attached.record)
        for number in self._in_order(found):
            attached = found[number]
            if taken[number] >= len(attached.entries):
                return True  # the order was read later than this log: read on
            self._token(number, attached.entries[taken[number]])
            taken[number] += 1
            self._maybe_ended(number, attached.record)
        return False

    def _in_order(self, found: dict[int, Attached]) -> list[int]:
        """The choice of each entry to take, in the order in which the pool committed them."""
        if len(self.requests) == 1:
            return [0] * len(found[0].entries) if 0 in found else []
        latest = found[self.requests[-1].choice]
        return list(latest.order[sum(self._seen) + self._log.order_shift :])

    def _maybe_ended(self, number: int, record: Record) -> None:
        if record.state != State.WAITING:
            self._clock.running()
        self._states[number] = record.state
        if not record.state.ended:
            return
        # Entries past a stop string are in the log without counting.
        if record.state != State.COMPLETED or self._seen[number] >= self._wanted(number, record.n_tokens):
            self._ended(
                number, record.state, record.n_tokens, record.finish_reason, record.code, record.message
            )

    # -- endings by others

    async def abandon(self, error: RequestError, *, end: bool) -> None:
        """Stop following; `end` also ends what is open in the pool."""
        if self.done:
            return
        if end:
            self._fail(error)
        else:
            self.failure = error
            self.done = True
            self._attention.set()
            self._notify()
