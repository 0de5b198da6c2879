"""Drives an executor as a scheduler would, without Redis: everything that waits joins at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import count

import torch

from services.engine.inputs import FlatBatch
from services.engine.iteration import Executed, Executor
from services.engine.kv_manager import KVManager
from services.engine.model.load import LoadedModel
from shared.faults import FaultInjector
from shared.protocol.batch import BatchDescriptor, ContinuingEntry, Entry, FirstEntry
from shared.protocol.request import SamplingParams


@dataclass(frozen=True)
class RecordingModel(LoadedModel):
    """A loaded model that keeps every forward pass's logits."""

    seen: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def around(cls, model: LoadedModel) -> "RecordingModel":
        return cls(**{one.name: getattr(model, one.name) for one in fields(model)})

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        logits = LoadedModel.forward(self, batch)
        self.seen.append(logits.clone())
        return logits


def sampling(max_new_tokens: int = 8, **changes: object) -> SamplingParams:
    """Greedy and deaf to end-of-sequence, unless told otherwise."""
    values: dict[str, object] = {"temperature": 0.0, "ignore_eos": True}
    return SamplingParams.model_validate(values | {"max_new_tokens": max_new_tokens} | changes)


@dataclass
class Job:
    """One sequence as its scheduler sees it."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    fault: str = ""
    output: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    held: bool = False
    finish: str = ""
    code: str = ""
    message: str = ""

    @property
    def running(self) -> bool:
        return not (self.finish or self.code)

    @property
    def reserved_slots(self) -> int:
        return len(self.prompt) + self.params.max_new_tokens

    def entry(self) -> Entry:
        """A first entry with the full story, or a continuing one."""
        if self.held:
            position = len(self.prompt) + len(self.output) - 1
            return ContinuingEntry(
                id=self.id, attempt=0, last_token=self.output[-1], position=position, index=len(self.output)
            )
        return FirstEntry(
            id=self.id,
            attempt=0,
            group=self.id,
            tokens=(*self.prompt, *self.output),
            n_prompt=len(self.prompt),
            reserved_slots=self.reserved_slots,
            sampling=self.params,
            fault=self.fault,
        )


class Driver:
    """An engine and its jobs."""

    def __init__(self, model: LoadedModel, *, n_slots: int = 8192, test_faults: bool = False) -> None:
        self.model = RecordingModel.around(model)
        self.executor = Executor(
            self.model, KVManager(model.layout, n_slots), FaultInjector() if test_faults else None
        )
        self.jobs: dict[str, Job] = {}
        self._numbers = count(1)
        self._releases: list[str] = []

    def add(
        self, name: str, prompt: Sequence[int], params: SamplingParams | None = None, fault: str = ""
    ) -> Job:
        job = Job(name, tuple(prompt), params or sampling(), fault)
        self.jobs[name] = job
        return job

    def evict(self, name: str) -> None:
        """As after a reassign: the K/V goes, and the job starts again with prompt and output."""
        self._releases.append(name)
        self.jobs[name].held = False

    def step(self, names: Sequence[str] | None = None) -> Executed:
        """One iteration of the named jobs, or of all that are unfinished."""
        jobs = [self.jobs[name] for name in names or self.jobs if self.jobs[name].running]
        descriptor = BatchDescriptor(
            iteration=next(self._numbers),
            fence="1:test",
            releases=tuple(self._releases),
            entries=tuple(job.entry() for job in jobs),
        )
        self._releases = []
        before = len(self.model.seen)
        executed = self.executor.execute_iteration(descriptor)
        rows = self.model.seen[-1] if len(self.model.seen) == before + 1 else None
        for i, (job, output) in enumerate(zip(jobs, executed.outputs, strict=True)):
            assert (output.id, output.index) == (job.id, len(job.output))
            job.held, job.code, job.message = True, output.code, output.message
            if output.token is not None:
                job.output.append(output.token)
                job.finish = output.finish_reason
                if rows is not None and len(rows) == len(jobs):
                    job.logits.append(rows[i])
            if not job.running:
                self._releases.append(job.id)
        return executed

    def run(self) -> None:
        """Iterate until every job has ended."""
        while any(job.running for job in self.jobs.values()):
            self.step()
        self.step([])


def alone(model: LoadedModel, prompt: Sequence[int], params: SamplingParams) -> Job:
    """What a request gives when it is the only one."""
    driver = Driver(model)
    job = driver.add("alone", prompt, params)
    driver.run()
    return job
