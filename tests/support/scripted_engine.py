"""Engines that follow a script, around the scheduler's pure state: no model, no Redis, no clock.

A sequence ends after as many tokens as its script says. A pipeline of n workers returns its
oldest batch when `returns` is called; the scheduler fills the free worker at the next `fill`.
"""

from dataclasses import dataclass, field

from services.scheduler.effects import Decision, Effect, Reassign
from services.scheduler.selection import Select, select
from services.scheduler.state import SchedulerState
from shared.protocol.inbox import EngineJoined, InboxEvent, Output, Reported, Returned, Submitted
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.result import EngineReport, EngineStatus, HeldSequence, Phase
from shared.protocol.wire import encode

FENCE = "1:test"


def make_request(name: str, n_prompt: int, max_new_tokens: int, **changes: object) -> GenerationRequest:
    """A sequence of `n_prompt` + `max_new_tokens` slots."""
    values: dict[str, object] = {
        "id": name,
        "group": name,
        "n_prompt": n_prompt,
        "sampling": SamplingParams(max_new_tokens=max_new_tokens),
        "rendering": Rendering(route="completions", created=1),
    }
    return GenerationRequest.model_validate(values | changes)


@dataclass(frozen=True)
class Batch:
    """A dispatched iteration as an acceptance vector writes it."""

    engine: str
    number: int
    members: str
    """Names in the batch's order, joined."""
    tokens: int
    """Flat input tokens: a prefill brings all known tokens, a decode one."""
    n_reserved: int
    releases: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass
class Bench:
    """A scheduler's state and its scripted engines."""

    max_batch_size: int = 16
    select: Select = select
    until_done: bool = False
    queue_timeout: float = 0.0
    twice: bool = False
    """Every event is heard twice."""
    batches: list[Batch] = field(default_factory=list)
    emitted: list[str] = field(default_factory=list)
    """Names in the order of their tokens."""
    finished: list[str] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    """Tokens after which a sequence ends."""
    logs: dict[str, int] = field(default_factory=dict)
    """Tokens committed to each log: what the pool knows."""
    attempts: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state = SchedulerState(
            max_batch_size=self.max_batch_size,
            select=self.select,
            queue_timeout=self.queue_timeout,
            fence=FENCE,
        )
        self.in_flight: dict[str, list[Batch]] = {}

    # -- events

    def hear(self, event: InboxEvent) -> list[Effect]:
        """Let the state hear an event, once or twice; what the first hearing demands is kept."""
        effects = self.state.hear(event)
        if self.twice:
            self.state.hear(event)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Reassign) and effect.id in self.state.sequences:
                self.attempts[effect.id] = effect.attempt + 1
                self.state.moved(
                    effect.id, attempt=effect.attempt + 1, n_output=self.logs[effect.id], last_token=7
                )
        return effects

    def engine(
        self,
        name: str = "e0",
        *,
        n_slots: int = 1000,
        n_workers: int = 1,
        held: tuple[HeldSequence, ...] = (),
        max_batch_size: int = 256,
    ) -> str:
        """An engine joins and reports what it holds."""
        status = EngineStatus(
            id=name,
            name=name,
            n_slots=n_slots,
            max_model_len=n_slots,
            stages=n_workers,
            max_batch_size=max_batch_size,
        )
        self.in_flight.setdefault(name, [])
        self.hear(EngineJoined(status=status))
        report = EngineReport(fence=FENCE, status=status, last_iteration=0, held=held)
        self.hear(Reported(engine=name, report=encode(report).decode()))
        return name

    def submit(self, name: str, n_prompt: int = 1, generated: int = 1000, **changes: object) -> None:
        """A sequence arrives that ends after `generated` tokens, which is also what it may generate."""
        most = changes.pop("max_new_tokens", generated)
        assert isinstance(most, int)
        request = make_request(name, n_prompt, most, **changes)
        self.lengths[name] = generated
        self.logs[name], self.attempts[name] = 0, 0
        self.hear(Submitted(id=name, arrival=len(self.lengths), request=encode(request).decode()))

    # -- iterations

    def fill(self) -> list[Batch]:
        """Lines 1 to 9 of the main loop for every engine: dispatch until all workers are busy."""
        sent: list[Batch] = []
        for engine in list(self.state.engines):
            while (decision := self.state.decide(engine)) is not None:
                sent.append(self._dispatch(decision))
        return sent

    def _dispatch(self, decision: Decision) -> Batch:
        tokens = sum(
            1 if s.phase is Phase.DECODE else s.request.n_prompt + s.n_output for s in decision.members
        )
        ids = tuple(s.id for s in decision.members)
        batch = Batch(
            engine=decision.engine,
            number=decision.iteration,
            members="".join(ids),
            tokens=tokens,
            n_reserved=decision.n_reserved,
            releases=decision.releases,
            ids=ids,
        )
        self.state.scheduled(decision)
        self.batches.append(batch)
        self.in_flight[decision.engine].append(batch)
        return batch

    def returns(self, engine: str = "e0") -> Returned:
        """The engine's oldest batch comes back."""
        batch = self.in_flight[engine].pop(0)
        outputs = [self._output(name) for name in batch.ids]
        if self.until_done:
            while not all(output.ended for output in outputs):
                outputs = [o if o.ended else self._output(o.id) for o in outputs]
        event = Returned(engine=engine, iteration=batch.number, outputs=tuple(outputs))
        self.hear(event)
        return event

    def _output(self, name: str) -> Output:
        """One token, judged as the pool would: an ended sequence is refused."""
        index, attempt = self.logs[name], self.attempts[name]
        if name in self.ended:
            return Output(id=name, attempt=attempt, accepted=False, index=index, token=7, ended=True)
        self.logs[name] += 1
        self.emitted.append(name)
        done = self.logs[name] == self.lengths[name]
        if done:
            self.ended.add(name)
            self.finished.append(name)
        return Output(id=name, attempt=attempt, accepted=True, index=index, token=7, ended=done)

    def run(self, most: int = 1000) -> list[Batch]:
        """Fill and return in turn until nothing is in flight and nothing is due; returns the batches
        that had members."""
        for _ in range(most):
            self.fill()
            busy = [engine for engine, batches in self.in_flight.items() if batches]
            if not busy:
                return [batch for batch in self.batches if batch.ids]
            for engine in busy:
                self.returns(engine)
        raise AssertionError("the sequences do not come to an end")

    def rows(self) -> list[tuple[str, int]]:
        """Members and flat tokens of each batch with members."""
        return [(batch.members, batch.tokens) for batch in self.batches if batch.ids]
