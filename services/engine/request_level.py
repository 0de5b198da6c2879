"""Request-level scheduling, the baseline: one message is a whole batch, run until all have ended.

This is how servers worked before ORCA: an early finisher is not answered before the last of its
batch, and nobody joins meanwhile. It exists to be compared with, on the very same engine.
"""

from services.engine.iteration import Executed, Executor
from shared.protocol.batch import BatchDescriptor, ContinuingEntry
from shared.protocol.result import SequenceOutput


def execute_until_done(executor: Executor, descriptor: BatchDescriptor) -> tuple[Executed, int]:
    """Run a descriptor's entries to their ends; returns everything in order, and the forward passes.

    The outputs hold several tokens of each member, with growing indexes, to be committed at once.
    """
    first = executor.execute_iteration(descriptor)
    outputs, groups = list(first.outputs), list(first.groups)
    last, n_passes = first, 1
    while entries := _unfinished(executor, last.outputs):
        last = executor.execute_iteration(descriptor.model_copy(update={"releases": (), "entries": entries}))
        outputs += last.outputs
        groups += last.groups
        n_passes += 1
    return Executed(tuple(outputs), tuple(groups), first.members), n_passes


def _unfinished(executor: Executor, outputs: tuple[SequenceOutput, ...]) -> tuple[ContinuingEntry, ...]:
    return tuple(
        ContinuingEntry(
            id=output.id,
            attempt=output.attempt,
            last_token=output.token,
            position=executor.kv.get(output.id).length,
            index=output.index + 1,
        )
        for output in outputs
        if output.token is not None and not output.finish_reason
    )
