"""From a decision to a descriptor on an engine's stream.

Knows which part of the story a member still needs: everything at its first iteration on an
engine, afterwards only its last token and position.
"""

import json
from typing import Any

from services.scheduler.effects import Decision
from services.scheduler.sequence import Sequence
from shared.channels.calls import TROUBLE, Pool
from shared.channels.lease import LEASE_SECONDS
from shared.channels.request_pool import dispatch
from shared.errors import DecodeError, NotLeader
from shared.keys import Keys
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, Entry, FirstEntry
from shared.protocol.token import TokenEntry
from shared.protocol.wire import decode


class PromptLost(Exception):
    """A sequence's prompt or log is missing or unreadable; no engine can ever run it."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence.id)
        self.sequence = sequence


class Dispatcher:
    """Sends decisions to engines."""

    def __init__(self, pool: Pool, keys: Keys, *, fence: str, until_done: bool = False) -> None:
        self._pool = pool
        self._keys = keys
        self._fence = fence
        self._until_done = until_done

    def send(self, decision: Decision, heard: str) -> tuple[str, ...]:
        """Dispatch one iteration; returns the members that may not run (then nothing was sent).

        Raises:
            NotLeader: another scheduler leads, or it cannot be known whether this was sent.
            LookupError: the engine is gone.
            PromptLost: a member can never run.
        """
        tokens = self._load_tokens([s for s in decision.members if not s.has_kv])
        lost = tuple(s.id for s in decision.members if not s.has_kv and tokens[s.id] is None)
        if lost:
            return lost
        descriptor = BatchDescriptor(
            iteration=decision.iteration,
            fence=self._fence,
            releases=decision.releases,
            entries=tuple(self._entry(s, tokens.get(s.id)) for s in decision.members),
            n_reserved=decision.n_reserved,
            batches_in_flight=decision.batches_in_flight,
            waiting=decision.waiting,
            waiting_total=decision.waiting_total,
            heard=heard,
            until_done=self._until_done,
        )
        call = dispatch(
            self._keys,
            fence=self._fence,
            engine_id=decision.engine,
            descriptor=descriptor,
            trim_before=decision.trim_before,
        )
        try:
            return self._pool.run(call, patience=LEASE_SECONDS)
        except TROUBLE as error:
            # Sent or not? Another batch under the same number would be taken for this one.
            raise NotLeader(f"no answer to a dispatch for a whole lease: {error}") from error

    @staticmethod
    def _entry(sequence: Sequence, tokens: tuple[int, ...] | None) -> Entry:
        request = sequence.request
        if tokens is None:
            return ContinuingEntry(
                id=request.id,
                attempt=sequence.attempt,
                last_token=sequence.last_token,
                position=sequence.n_kv,
                index=sequence.n_output,
            )
        return FirstEntry(
            id=request.id,
            attempt=sequence.attempt,
            group=request.group,
            prompt_index=request.prompt_index,
            tokens=tokens,
            n_prompt=request.n_prompt,
            reserved_slots=request.reserved_slots,
            sampling=request.sampling,
            fault=request.fault,
        )

    def _load_tokens(self, sequences: list[Sequence]) -> dict[str, tuple[int, ...] | None]:
        """Prompt and log of each sequence that its engine does not hold yet; None where lost."""
        if not sequences:
            return {}
        with self._pool.client.pipeline(transaction=False) as pipe:
            for s in sequences:
                pipe.get(self._keys.prompt(s.request.group, s.request.prompt_index))
                pipe.lrange(self._keys.tokens(s.id), 0, -1)
            replies: list[Any] = pipe.execute()
        return {
            s.id: _joined(s, prompt, log)
            for s, prompt, log in zip(sequences, replies[::2], replies[1::2], strict=True)
        }


def _joined(sequence: Sequence, prompt: bytes | None, log: list[bytes]) -> tuple[int, ...] | None:
    """Prompt and committed tokens, or None where the log is not as long as was thought."""
    if len(log) != sequence.n_output:
        return None
    try:
        tokens = (*json.loads(prompt or b""), *(decode(TokenEntry, entry).token for entry in log))
    except (ValueError, TypeError, DecodeError):
        raise PromptLost(sequence) from None
    if len(tokens) != sequence.request.n_prompt + sequence.n_output:
        raise PromptLost(sequence)
    return tokens
