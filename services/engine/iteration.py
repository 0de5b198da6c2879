"""One iteration: release, admit, one forward pass, one token per member.

`execute_iteration` is the engine. It knows descriptors, K/V and the model, and nothing of Redis.
It never reorders or chooses: it executes what the scheduler decided, and what fails for one
member fails for that member alone.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from services.engine.inputs import MemberInput, flatten
from services.engine.kv_manager import KVManager
from services.engine.model.load import LoadedModel
from services.engine.model.selective_batching import PROGRESS
from services.engine.prompt_scores import score_prompt
from services.engine.sampling import Choice, Row, sample
from shared.errors import ErrorCode, RequestError, SettingsError
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, Entry, FirstEntry
from shared.protocol.request import SamplingParams
from shared.protocol.result import HeldSequence, Member, Phase, SequenceOutput
from shared.protocol.token import FinishReason, TokenEntry
from shared.protocol.wire import encode

LOG = logging.getLogger(__name__)


class FaultHook(Protocol):
    """What tests put in the way of their own requests; absent outside of them."""

    def reach(self, header: str, sequence_id: str, *, stage: str, index: int) -> None:
        """A sequence with a fault header has reached a stage on the way to its `index`-th token."""

    def forget(self, sequence_id: str) -> None:
        """A sequence has been released."""


@dataclass(slots=True)
class LocalSequence:
    """What the engine keeps of a sequence besides its K/V."""

    first: FirstEntry
    tokens: list[int]
    """Prompt and output so far."""
    done: bool = False
    """Finished or failed here; the scheduler's release is still to come."""
    prompt_scores: tuple[TokenEntry, ...] = ()
    """For the first token's entry, where they were asked for."""

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.first.n_prompt]

    @property
    def output(self) -> list[int]:
        return self.tokens[self.first.n_prompt :]


@dataclass(frozen=True, slots=True)
class Executed:
    """What one iteration did, in the members' order."""

    outputs: tuple[SequenceOutput, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    """Each output's group and prompt index."""
    members: tuple[Member, ...] = ()

    @property
    def n_tokens(self) -> int:
        """Input tokens of the whole batch."""
        return sum(member.tokens for member in self.members)

    @property
    def phase(self) -> str:
        """`prefill`, `decode` or `mixed`."""
        phases = {member.phase.value for member in self.members}
        return phases.pop() if len(phases) == 1 else "mixed"


@dataclass(slots=True)
class _Running:
    """A member on its way through the iteration."""

    entry: Entry
    sequence: LocalSequence
    input: MemberInput
    phase: Phase
    n_tokens: int
    """Input tokens of the whole iteration: more than `input` has where the prompt was scored first."""

    def reach(self, faults: FaultHook | None, stage: str) -> None:
        first = self.sequence.first
        if faults is not None and first.fault:
            faults.reach(first.fault, first.id, stage=stage, index=self.entry.index)


@dataclass(slots=True)
class Executor:
    """The model, the K/V and the sequences of one engine."""

    model: LoadedModel
    kv: KVManager
    faults: FaultHook | None = None
    sequences: dict[str, LocalSequence] = field(default_factory=dict)

    def execute_iteration(self, descriptor: BatchDescriptor) -> Executed:
        """Run one iteration: releases before anything else, then the entries in their order."""
        for sequence_id in descriptor.releases:
            self.release(sequence_id)
        outputs: dict[str, SequenceOutput] = {}
        running: list[_Running] = []
        for entry in descriptor.entries:
            try:
                running.append(self._enter(entry))
            except Exception as error:  # noqa: BLE001 - whatever it is, it must stay with its member
                outputs[entry.id] = self._fail(entry, error)
        self._run(running, outputs)
        return Executed(
            outputs=tuple(outputs[entry.id] for entry in descriptor.entries),
            groups=tuple(self._group(entry) for entry in descriptor.entries),
            members=tuple(Member(id=one.entry.id, phase=one.phase, tokens=one.n_tokens) for one in running),
        )

    def release(self, sequence_id: str) -> None:
        """Drop all that is held of a sequence."""
        self.kv.release(sequence_id)
        if self.sequences.pop(sequence_id, None) is not None and self.faults is not None:
            self.faults.forget(sequence_id)

    def drop_all(self) -> None:
        """Drop every sequence: the pool has forgotten this engine."""
        for sequence_id in list(self.sequences):
            self.release(sequence_id)
        self.kv.clear()

    def held(self) -> tuple[HeldSequence, ...]:
        """What a report says: every sequence with K/V here."""
        return tuple(
            HeldSequence(
                id=sequence_id,
                attempt=sequence.first.attempt,
                n_kv=self.kv.get(sequence_id).length,
                reserved_slots=sequence.first.reserved_slots,
            )
            for sequence_id, sequence in self.sequences.items()
            if sequence_id in self.kv
        )

    @property
    def n_unfinished(self) -> int:
        """Held sequences that have not ended here."""
        return sum(not sequence.done for sequence in self.sequences.values())

    def warm_up(self) -> None:
        """Prefill and decode once, before anybody is told that this engine exists.

        Raises:
            SettingsError: the model does not work, or computes attention without this engine.
        """
        sampling = SamplingParams(max_new_tokens=2, temperature=0.0, ignore_eos=True)
        first = FirstEntry(
            id="warm-up", attempt=0, group="warm-up", tokens=(0,), n_prompt=1,
            reserved_slots=min(3, self.kv.n_slots), sampling=sampling,
        )  # fmt: skip
        before = PROGRESS.layers
        prefilled = self.execute_iteration(BatchDescriptor(iteration=0, fence="", entries=(first,)))
        token = prefilled.outputs[0].token
        passes = 1
        if token is not None and self.kv.n_slots > 1:
            again = ContinuingEntry(id=first.id, attempt=0, last_token=token, position=1, index=1)
            decode = BatchDescriptor(iteration=0, fence="", entries=(again,))
            token = self.execute_iteration(decode).outputs[0].token
            passes = 2
        self.release(first.id)
        if token is None:
            raise SettingsError("the model's first forward pass failed; the log above says why")
        if PROGRESS.layers - before != passes * self.model.layout.n_layers:
            raise SettingsError("this model family computes attention in a way that is not supported")

    def _enter(self, entry: Entry) -> _Running:
        """Admit a first entry or find a continuing one; its phase follows from its K/V.

        Raises:
            RequestError: the member cannot run here.
            ArithmeticError, RuntimeError: its prompt could not be scored.
        """
        tokens = self._admit(entry) if isinstance(entry, FirstEntry) else self._continue(entry)
        sequence, phase, n_tokens = self.sequences[entry.id], self.kv.phase(entry.id), len(tokens)
        params = sequence.first.sampling
        if params.prompt_logprobs and entry.index == 0:
            sequence.prompt_scores = score_prompt(self.model, self.kv, entry.id, tokens, params.logprobs or 0)
            tokens = tokens[-1:]
        member = MemberInput(entry.id, tokens, self.kv.get(entry.id))
        return _Running(entry, sequence, member, phase, n_tokens)

    def _admit(self, entry: FirstEntry) -> tuple[int, ...]:
        self.release(entry.id)  # an earlier attempt of it
        self.sequences[entry.id] = LocalSequence(entry, list(entry.tokens))
        if not all(0 <= token < self.model.vocab_size for token in entry.tokens):
            raise RequestError(
                ErrorCode.INVALID_VALUE, f"token ids must be below the vocabulary's {self.model.vocab_size}"
            )
        if not 0 < len(entry.tokens) <= min(entry.reserved_slots, self.model.max_model_len):
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"{len(entry.tokens)} tokens do not fit into {entry.reserved_slots} K/V slots "
                f"and a context of {self.model.max_model_len}",
            )
        try:
            self.kv.admit(entry.id, entry.reserved_slots)
        except (MemoryError, RuntimeError) as error:
            raise RequestError(
                ErrorCode.ENGINE_FAILED, f"the engine has no room for this request: {error}"
            ) from error
        return entry.tokens

    def _continue(self, entry: ContinuingEntry) -> tuple[int, ...]:
        sequence = self.sequences.get(entry.id)
        if sequence is None or entry.id not in self.kv:
            raise RequestError(ErrorCode.ENGINE_FAILED, "the engine no longer holds this request")
        known = self.kv.get(entry.id).length
        if known != entry.position or sequence.tokens[known:] != [entry.last_token]:
            raise RequestError(
                ErrorCode.ENGINE_FAILED,
                f"the engine holds {known} tokens of this request, the scheduler names {entry.position}",
            )
        return (entry.last_token,)

    def _run(self, running: list[_Running], outputs: dict[str, SequenceOutput]) -> None:
        """Forward and sample; after a failure in halves, until the culprit is alone."""
        if not running:
            return
        try:
            logits = self._forward(running)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must stay with its member
            if len(running) == 1:
                outputs[running[0].entry.id] = self._fail(running[0].entry, error)
                return
            LOG.warning("an iteration of %d members failed: %r; split and run again", len(running), error)
            middle = len(running) // 2
            self._run(running[:middle], outputs)
            self._run(running[middle:], outputs)
            return
        finite = torch.isfinite(logits).all(1).tolist()  # [B]
        for one, row, good in zip(running, logits.numpy(), finite, strict=True):
            outputs[one.entry.id] = self._finish(one, row, good)

    def _forward(self, running: Sequence[_Running]) -> torch.Tensor:
        for one in running:
            one.reach(self.faults, one.phase.value)
        logits = self.model.forward(flatten([one.input for one in running]))  # [B, V]
        for one in running:
            self.kv.extend(one.entry.id, len(one.input.tokens))
        return logits

    def _finish(self, one: _Running, row: Row, finite: bool) -> SequenceOutput:
        """Sample one member's token and decide whether it is the last."""
        try:
            if not finite:
                raise ArithmeticError("the model's output for this request is not finite")
            one.reach(self.faults, "sample")
            choice = self._sample(one, row)
            one.reach(self.faults, "publish")
        except Exception as error:  # noqa: BLE001 - as above
            return self._fail(one.entry, error)
        sequence, index = one.sequence, one.entry.index
        sequence.tokens.append(choice.token)
        entry = TokenEntry(
            token=choice.token,
            logprob=choice.logprob,
            top=choice.top,
            prompt=sequence.prompt_scores if index == 0 else (),
        )
        reason = self._finish_reason(sequence.first.sampling, choice.token, index)
        sequence.done = bool(reason)
        return SequenceOutput(
            id=one.entry.id,
            attempt=one.entry.attempt,
            index=index,
            token=choice.token,
            entry=encode(entry).decode(),
            finish_reason=reason,
        )

    def _sample(self, one: _Running, row: Row) -> Choice:
        params, sequence, index = one.sequence.first.sampling, one.sequence, one.entry.index
        banned: set[int] = set()
        if index < params.min_tokens:
            banned = self._stop_ids(params)
        return sample(row, params, index=index, prompt=sequence.prompt, output=sequence.output, banned=banned)

    def _stop_ids(self, params: SamplingParams) -> set[int]:
        ends = set(params.stop_token_ids)
        return ends if params.ignore_eos else ends | self.model.eos_ids

    def _finish_reason(self, params: SamplingParams, token: int, index: int) -> str:
        if token in self._stop_ids(params):
            return FinishReason.STOP.value
        return FinishReason.LENGTH.value if index + 1 >= params.max_new_tokens else ""

    def _fail(self, entry: Entry, error: Exception) -> SequenceOutput:
        """A member's failure; its K/V goes at once, its record waits for the release."""
        if isinstance(error, RequestError):
            code, message = error.code, error.message
        elif _out_of_memory(error):
            code = ErrorCode.NOT_READY
            message = (
                "the engine ran out of memory for this request: try again later, or with a shorter prompt"
            )
        else:
            code, message = ErrorCode.ENGINE_FAILED, f"the engine failed on this request: {error}"
        LOG.warning("member failed: %s", message, extra={"request_id": entry.id}, exc_info=error)
        self.kv.release(entry.id)
        if entry.id in self.sequences:
            self.sequences[entry.id].done = True
        return SequenceOutput(
            id=entry.id, attempt=entry.attempt, index=entry.index, code=code.value, message=message
        )

    def _group(self, entry: Entry) -> tuple[str, int]:
        sequence = self.sequences.get(entry.id)
        if sequence is not None:
            return sequence.first.group, sequence.first.prompt_index
        # A stranger's group shows in its id alone: `<group>` or `<group>.<choice>`.
        return entry.id.partition(".")[0], 0


def _out_of_memory(error: Exception) -> bool:
    """Python's own, a device's, or the processor allocator's, which is a plain RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
