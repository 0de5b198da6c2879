"""What a state of the exploration is: the pool as data, and what the actors know.

Knows the shape of the pool's keys; knows no laws and runs nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from shared.channels.calls import Call
from shared.keys import Keys
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams
from shared.protocol.token import TokenEntry
from shared.protocol.wire import encode

KEYS = Keys("m")
PREFIX = KEYS.open.removesuffix("open")
FINAL = ("completed", "cancelled", "failed")
PROMPT = (7, 8)
VIEW_SCRIPT = """
local out = {}
for i, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, nil
  if kind == 'string' then content = redis.call('GET', key)
  elseif kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'list' then content = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then content = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else
    local last = ''
    local info = redis.call('XINFO', 'STREAM', key)
    for j = 1, #info, 2 do if info[j] == 'last-generated-id' then last = info[j + 1] end end
    content = {last, redis.call('XRANGE', key, '-', '+')}
  end
  out[i] = {key, kind, redis.call('PTTL', key) >= 0, content}
end
return cjson.encode(out)
"""


def request(sequence_id: str, *, of: int = 1, prompt_index: int = 0, max_new: int = 2) -> GenerationRequest:
    """`a` is a request of one sequence, `c.1` the second sequence of group `c`."""
    group, _, choice = sequence_id.partition(".")
    return GenerationRequest(
        id=sequence_id,
        group=group,
        choice=int(choice or 0),
        n_choices=of,
        prompt_index=prompt_index,
        n_prompt=len(PROMPT),
        sampling=SamplingParams(max_new_tokens=max_new),
        rendering=Rendering(route="chat", created=1),
    )


@cache
def entry(sequence_id: str, index: int) -> str:
    """The one right log entry: what every engine computes for this place."""
    number = 100 * (sum(map(ord, sequence_id)) % 97) + index
    return encode(TokenEntry(token=number)).decode()


def _pairs(flat: Any) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True)) if flat else {}


@cache
def _read(payload: str) -> Any:
    return json.loads(payload)


class View:
    """Everything that the pool holds, without times and stream ids that depend on them."""

    def __init__(self, raw: bytes) -> None:
        self.content: dict[str, Any] = {}
        self.with_lifetime: set[str] = set()
        self.inbox_ids: list[str] = []
        self.times: dict[tuple[str, str], str] = {}
        for key, kind, lives, content in sorted(json.loads(raw) or ()):
            name = key.removeprefix(PREFIX)
            if lives:
                self.with_lifetime.add(name)
            self.content[name] = self._canonical(name, kind, content)

    def _canonical(self, name: str, kind: str, content: Any) -> Any:
        if kind == "hash":
            fields = sorted(_pairs(content).items())
            self.times |= {(name, k): v for k, v in fields if k.startswith("at_")}
            return {k: "set" if k.startswith("at_") else v for k, v in fields}
        if kind == "zset":
            return _pairs(content)
        if kind == "set":
            return sorted(content)
        if kind != "stream":
            return content
        last, entries = content[0], list(content[1] or ())
        if name.startswith("batches:"):
            return (int(last.split("-")[0]), [(int(i.split("-")[0]), f[1]) for i, f in entries])
        if name == "inbox":
            self.inbox_ids = [i for i, _ in entries]
        return [fields[1] for _, fields in entries]

    @cached_property
    def fingerprint(self) -> str:
        return repr((self.content, sorted(self.with_lifetime)))

    def get(self, name: str, default: Any = None) -> Any:
        return self.content.get(name, default)

    def record(self, sequence_id: str) -> dict[str, str]:
        """The fields of a record; empty for a missing one."""
        fields: dict[str, str] = self.get(f"request:{sequence_id}", {})
        return fields

    def log(self, sequence_id: str) -> list[str]:
        entries: list[str] = self.get(f"tokens:{sequence_id}", [])
        return entries

    @cached_property
    def records(self) -> dict[str, dict[str, str]]:
        return {n[8:]: fields for n, fields in self.content.items() if n.startswith("request:")}

    @cached_property
    def inbox(self) -> list[dict[str, Any]]:
        return [_read(payload) for payload in self.get("inbox", [])]

    def total(self, name: str) -> int:
        return int(self.get("totals", {}).get(name, 0))

    def last_iteration(self, engine_id: str) -> int | None:
        """The last number of an engine's stream; None when there is no stream."""
        stream = self.get(f"batches:{engine_id}")
        return None if stream is None else int(stream[0])


@dataclass(frozen=True)
class Action:
    """One step of one actor: a real call of the protocol, or something that the world does."""

    label: str
    actor: str
    kind: str
    call: Call[Any] | None = None
    commands: tuple[tuple[Any, ...], ...] = ()
    """What the environment does to the server instead of a call."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The call's meaning, for the laws."""
    repeat_of: str | None = None
    """The first answer, when this repeats a call whose reply was lost."""


@dataclass(frozen=True)
class World:
    """What the actors remember. Never changed in place."""

    fences: Mapping[str, str] = field(default_factory=dict)
    """Scheduler -> the last fence that it took."""
    sent: tuple[tuple[str, Any], ...] = ()
    """(engine id, descriptor) of every iteration that reached an engine's stream."""
    done: Mapping[str, int] = field(default_factory=dict)
    """How often each kind of action was taken."""
    last: Mapping[str, tuple[Action, str]] = field(default_factory=dict)
    """Actor -> its last call and the answer, for a repeat."""
    lost: int = 0
    """How many replies were lost so far."""
    lossy: bool = False
    """The server went back in time: its counters no longer tell the whole story."""

    @cached_property
    def fingerprint(self) -> str:
        sent = [(engine, encode(d)) for engine, d in self.sent]
        last = sorted((actor, action.label) for actor, (action, _) in self.last.items())
        return repr(
            (sorted(self.fences.items()), sent, sorted(self.done.items()), last, self.lost, self.lossy)
        )

    def after(self, action: Action, answer: Any) -> "World":
        """What the actors know once this answer has arrived."""
        done = dict(self.done)
        if action.repeat_of is None:
            done[action.kind] = done.get(action.kind, 0) + 1
        last = {k: v for k, v in self.last.items() if k != action.actor}
        if action.call is not None and action.repeat_of is None:
            last[action.actor] = (action, repr(answer))
        lost, lossy = self.lost + (action.repeat_of is not None), self.lossy or action.kind == "lose"
        world = replace(self, done=done, last=last, lost=lost, lossy=lossy)
        if action.kind == "acquire" and answer:
            world = replace(world, fences={**self.fences, action.actor: answer})
        sent = action.about.get("descriptor")
        if action.kind == "dispatch" and answer == () and (action.about["engine"], sent) not in self.sent:
            world = replace(world, sent=(*self.sent, (action.about["engine"], sent)))
        return world
