"""A pool with one leader, one or two engines and one listening gateway, for tests of the steps."""

import json
from collections.abc import Sequence as Seq
from typing import Any

import redis
from redis.client import PubSub

from shared.channels import inbox, lease, presence, request_pool
from shared.channels.calls import Call, Pool
from shared.channels.request_pool import Attached, Submission
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, FirstEntry
from shared.protocol.inbox import InboxEvent
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.result import EngineStatus, IterationResult, SequenceOutput
from shared.protocol.token import Event, EventMessage, State, TokenEntry
from shared.protocol.wire import decode, encode

GATEWAY = "gateway-0.aa"


def make_request(sequence_id: str, **changes: Any) -> GenerationRequest:
    """A request of two prompt tokens and up to four new ones."""
    values: dict[str, Any] = {
        "id": sequence_id,
        "group": sequence_id,
        "n_prompt": 2,
        "sampling": SamplingParams(max_new_tokens=4),
        "rendering": Rendering(route="completions", created=1),
    }
    return GenerationRequest(**(values | changes))


def make_group(group: str, n: int) -> list[GenerationRequest]:
    """A request of n choices over one prompt."""
    return [make_request(f"{group}.{k}", group=group, choice=k, n_choices=n) for k in range(n)]


def entry(token: int) -> str:
    """A token log entry."""
    return encode(TokenEntry(token=token)).decode()


class Bench:
    """The pool under test."""

    def __init__(self, client: "redis.Redis", keys: Keys) -> None:
        self.client = client
        self.keys = keys
        self.pool = Pool(client)
        self.fence = self.run(lease.acquire(keys, token="first"))
        self.engine = self.join("engine-0")
        self._pubsub: PubSub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._pubsub.subscribe(keys.events(GATEWAY))
        self._pubsub.get_message(timeout=1)
        self._number = 0

    def run(self, call: Call[Any]) -> Any:
        return self.pool.run(call)

    def join(self, name: str) -> str:
        status = EngineStatus(id=presence.new_id(name), name=name, n_slots=100, max_model_len=100)
        self.run(presence.join_engine(self.keys, status))
        return status.id

    def submit(
        self, *requests: GenerationRequest, prompts: Seq[Seq[int]] = ((1, 2),), **options: Any
    ) -> Submission:
        values: dict[str, Any] = {"gateway_id": GATEWAY, "max_queue": 10, "record_ttl": 600}
        call = request_pool.submit(self.keys, requests=requests, prompts=prompts, **(values | options))
        result: Submission = self.run(call)
        return result

    def dispatch_call(
        self, *members: GenerationRequest, attempt: int = 0, index: int = 0, **options: Any
    ) -> Call[tuple[str, ...]]:
        """First entries for index 0 or a new attempt, continuing ones otherwise."""
        self._number = options.pop("number", self._number + 1)
        fresh = options.pop("first", index == 0)
        entries = tuple(
            FirstEntry(
                id=m.id,
                attempt=attempt,
                group=m.group,
                tokens=(1, 2),
                n_prompt=2,
                reserved_slots=6,
                sampling=m.sampling,
            )
            if fresh
            else ContinuingEntry(id=m.id, attempt=attempt, last_token=9, position=1 + index, index=index)
            for m in members
        )
        values = {"fence": self.fence, "engine_id": self.engine} | options
        descriptor = BatchDescriptor(iteration=self._number, fence=values["fence"], entries=entries)
        return request_pool.dispatch(self.keys, descriptor=descriptor, **values)

    def dispatch(self, *members: GenerationRequest, **options: Any) -> tuple[str, ...]:
        refused: tuple[str, ...] = self.run(self.dispatch_call(*members, **options))
        return refused

    def commit_call(
        self, *members: GenerationRequest, token: int | None = 7, index: int = 0, **options: Any
    ) -> Call[dict[str, bool]]:
        engine, number = options.pop("engine", self.engine), options.pop("number", self._number)
        attempt = options.pop("attempt", 0)
        outputs = tuple(
            SequenceOutput(
                id=m.id,
                attempt=attempt,
                index=index,
                token=token,
                entry="" if token is None else entry(token),
                **options,
            )
            for m in members
        )
        result = IterationResult(engine=engine, iteration=number, outputs=outputs, record='{"r":1}')
        groups = [(m.group, m.prompt_index) for m in members]
        return request_pool.commit(self.keys, result=result, engine_name="engine-0", groups=groups)

    def commit(self, *members: GenerationRequest, **options: Any) -> dict[str, bool]:
        answer: dict[str, bool] = self.run(self.commit_call(*members, **options))
        return answer

    def step(self, *members: GenerationRequest, index: int = 0, **options: Any) -> dict[str, bool]:
        """Dispatch and commit one iteration."""
        assert self.dispatch(*members, index=index) == ()
        return self.commit(*members, index=index, **options)

    def end(self, request: GenerationRequest, outcome: State, **options: Any) -> State | None:
        before: State | None = self.run(
            request_pool.end(self.keys, request=request, outcome=outcome, **options)
        )
        return before

    def reassign(self, request: GenerationRequest, attempt: int = 0, **options: Any) -> bool:
        values = {"fence": self.fence, "engine_id": self.engine} | options
        call = request_pool.reassign(self.keys, sequence_id=request.id, attempt=attempt, **values)
        moved: bool = self.run(call)
        return moved

    def look(self, request: GenerationRequest, index: int = 0, gateway_id: str = "") -> Attached:
        call = request_pool.attach(
            self.keys, sequence_id=request.id, group=request.group, gateway_id=gateway_id, index=index
        )
        found: Attached = self.run(call)
        assert found is not None
        return found

    def tokens(self, request: GenerationRequest) -> list[int]:
        """The token log."""
        return [json.loads(e)["token"] for e in self.look(request).entries]

    def total(self, name: str) -> int:
        return int(self.client.hget(self.keys.totals, name) or 0)

    def events(self) -> list[Event]:
        """What the gateway has heard since the last look."""
        heard: list[Event] = []
        while message := self._pubsub.get_message(timeout=0.05):
            heard += decode(EventMessage, message["data"]).events
        return heard

    def inbox(self, after: str = "0-0") -> list[InboxEvent]:
        """All inbox events after an entry."""
        return inbox.read(self.client, self.keys, after=after, block=0)[1]

    def close(self) -> None:
        self._pubsub.close()
