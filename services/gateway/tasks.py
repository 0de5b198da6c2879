"""Ending background tasks for certain."""

import asyncio
from collections.abc import Iterable

AGAIN_SECONDS = 0.5


async def cancel_all(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Cancel tasks and wait until they have ended.

    A cancellation can be lost inside a library that handles its own time-outs; so it is repeated.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
