"""The fault header of tests: imported only where `--test-faults` is on.

The stage `tokenize` happens here; all others travel with the request to the engine.
"""

import asyncio
import re

from services.gateway.errors import invalid
from shared.errors import ErrorCode

CODE = ErrorCode.INTERNAL_ERROR
MAX_SLEEP = 600.0
_FAULT = re.compile(
    r"(tokenize|prefill|decode:[1-9]\d{0,5}|sample|publish)=(raise|oom|sleep:\d{1,4}(?:\.\d{1,3})?)"
)


class InjectedFault(Exception):
    """The fault that a test asked for."""


async def accept(header: str) -> str:
    """Check the header, do the gateway's own stage, return what the engine is to do.

    Raises:
        RequestError: not `STAGE=ACTION[,STAGE=ACTION]`.
        InjectedFault: `tokenize=raise` or `tokenize=oom`.
    """
    rest = []
    for part in (part.strip() for part in header.split(",")):
        match = _FAULT.fullmatch(part)
        if match is None:
            raise invalid(
                "X-Orca-Fault",
                "X-Orca-Fault must be STAGE=ACTION[,STAGE=ACTION]; stages: tokenize, prefill, decode:K, "
                "sample, publish; actions: raise, oom, sleep:SECONDS",
            )
        stage, action = match.groups()
        if stage != "tokenize":
            rest.append(part)
        elif action.startswith("sleep:"):
            await asyncio.sleep(min(MAX_SLEEP, float(action.removeprefix("sleep:"))))
        else:
            raise InjectedFault(f"injected fault: {part}")
    return ",".join(rest)
