"""From a valid request to an accepted one: readiness, room, the pool's answer."""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from services.gateway.context import Gateway
from services.gateway.errors import invalid
from services.gateway.stream import GroupStream
from shared.channels import request_pool
from shared.channels.request_pool import Record, Submission
from shared.errors import ErrorCode, RequestError
from shared.protocol.request import GenerationRequest
from shared.protocol.token import State

LOG = logging.getLogger(__name__)
SUBSCRIBE_PATIENCE = 2.0
SUBMIT_TIMEOUT = 5.0
MAX_IDEMPOTENCY_KEY = 255

Prompts = Sequence[Sequence[int]]


def check_open(gateway: Gateway) -> None:
    """Raises: RequestError: `not_ready` while this gateway stops."""
    if gateway.draining:
        raise RequestError(ErrorCode.NOT_READY, "this gateway is stopping; ask another or try again")


def check_fits(gateway: Gateway, requests: Sequence[GenerationRequest]) -> None:
    """Raises: RequestError: `never_fits` for what no live engine could ever hold."""
    engines = gateway.presence.engines
    if not engines:
        return
    room = max(engine.n_slots for engine in engines)
    needed = max(request.reserved_slots for request in requests)
    if needed > room:
        raise RequestError(
            ErrorCode.NEVER_FITS,
            f"prompt and answer need {needed} K/V slots and the largest engine has {room}: "
            "shorten the prompt or lower max_tokens",
        )


async def submit(
    gateway: Gateway,
    requests: Sequence[GenerationRequest],
    prompts: Prompts,
    *,
    idempotency: str = "",
    fingerprint: str = "",
) -> GroupStream:
    """Put a group into the pool and follow it.

    Returns the stream that answers: with a known idempotency key, the earlier request's.

    Raises:
        RequestError: not ready, queue full, or a conflicting idempotency key.
    """
    await _wait_subscribed(gateway)
    stream = gateway.hub.open(requests, prompts)
    kept = False
    try:
        outcome = await _submit(gateway, requests, prompts, idempotency, fingerprint)
        kept = outcome.outcome == "accepted"
    finally:
        if not kept:
            gateway.hub.drop(stream)
    if kept:
        gateway.hub.start(stream)
        return stream
    if outcome.outcome == "known":
        return await attach(gateway, outcome.group, owner=requests[0].owner)
    if outcome.outcome == "conflict":
        raise RequestError(
            ErrorCode.IDEMPOTENCY_CONFLICT, "this Idempotency-Key was used with another body: use a new key"
        )
    raise RequestError(
        ErrorCode.QUEUE_FULL, f"the queue is full ({gateway.settings.max_queue} sequences): try again later"
    )


async def _wait_subscribed(gateway: Gateway) -> None:
    """No submit goes out before the pool's events can be heard."""
    try:
        async with asyncio.timeout(SUBSCRIBE_PATIENCE):
            await gateway.subscription.subscribed.wait()
    except TimeoutError:
        raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None


async def _submit(
    gateway: Gateway,
    requests: Sequence[GenerationRequest],
    prompts: Prompts,
    idempotency: str,
    fingerprint: str,
) -> Submission:
    replaces = ""
    while True:
        call = request_pool.submit(
            gateway.keys,
            requests=requests,
            prompts=prompts,
            gateway_id=gateway.hub.shared.gateway_id,
            max_queue=gateway.settings.max_queue,
            record_ttl=gateway.settings.record_ttl,
            idempotency=idempotency,
            fingerprint=fingerprint,
            replaces=replaces,
        )
        try:
            async with asyncio.timeout(SUBMIT_TIMEOUT):
                outcome = await gateway.pool.run(call, patience=SUBMIT_TIMEOUT / 2)
        except (RedisError, OSError, TimeoutError) as error:
            # The pool may have accepted it all the same: nobody would read the answer.
            gateway.hub.spawn(withdraw(gateway, requests))
            LOG.warning("cannot submit: %s", error, extra={"request_id": requests[0].group})
            raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None
        if outcome.outcome not in ("known", "conflict") or outcome.group == replaces:
            return outcome
        if not await _is_free_again(gateway, outcome.group):
            return outcome
        replaces = outcome.group


async def _is_free_again(gateway: Gateway, group: str) -> bool:
    """A key whose request is gone, or was cancelled or failed, may be used anew."""
    records = await read_group(gateway, group)
    return not records or any(record.state in (State.CANCELLED, State.FAILED) for record in records)


async def withdraw(gateway: Gateway, requests: Sequence[GenerationRequest]) -> None:
    """Cancel sequences whose submit had no answer."""
    for request in requests:
        call = request_pool.end(
            gateway.keys,
            request=request,
            outcome=State.CANCELLED,
            code=ErrorCode.NOT_READY,
            message="the pool did not answer in time",
        )
        try:
            await gateway.pool.run(call, patience=30)
        except (RedisError, OSError) as error:
            LOG.warning("cannot withdraw: %s", error, extra={"request_id": request.id})


async def read_group(gateway: Gateway, group: str) -> list[Record]:
    """The records of all choices of a group, in order; empty for an unknown one.

    Raises:
        RequestError: `not_ready` when the pool does not answer.
    """
    first = await read_record(gateway, group, group) or await read_record(gateway, f"{group}.0", group)
    if first is None:
        return []
    rest = [
        await read_record(gateway, f"{group}.{choice}", group) for choice in range(1, first.request.n_choices)
    ]
    return [first, *(record for record in rest if record is not None)]


async def read_record(gateway: Gateway, sequence_id: str, group: str) -> Record | None:
    """One sequence's record, read without listening.

    Raises:
        RequestError: `not_ready` when the pool does not answer.
    """
    # The index lies behind every log, so that no entries are sent.
    call = request_pool.attach(gateway.keys, sequence_id=sequence_id, group=group, gateway_id="", index=2**40)
    try:
        async with asyncio.timeout(SUBMIT_TIMEOUT):
            attached = await gateway.pool.run(call)
    except (RedisError, OSError, TimeoutError):
        raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None
    return attached.record if attached else None


async def attach(gateway: Gateway, group: str, *, owner: str) -> GroupStream:
    """Follow a group that is already in the pool: from its record and log, on any gateway.

    Raises:
        RequestError: `not_found` for one that is unknown or another key's.
    """
    stream = gateway.hub.find(group)
    if stream is not None and stream.requests[0].owner == owner:
        return stream
    records = await read_group(gateway, group)
    if not records or records[0].request.owner != owner or len(records) < records[0].request.n_choices:
        raise not_found(group)
    requests = [record.request for record in records]
    prompts = await _read_prompts(gateway, requests)
    stream = gateway.hub.find(group)  # another reader may have come meanwhile
    if stream is None:
        age = max(0.001, time.time() - records[0].times.get("submitted", time.time()))
        stream = gateway.hub.open(requests, prompts, age=age, listening=False)
        gateway.hub.start(stream)
    return stream


async def _read_prompts(gateway: Gateway, requests: Sequence[GenerationRequest]) -> Prompts:
    group = requests[0].group
    count = 1 + max(request.prompt_index for request in requests)
    try:
        raw: Any = await gateway.client.mget([gateway.keys.prompt(group, k) for k in range(count)])
    except (RedisError, OSError):
        raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None
    if None in raw:
        raise not_found(group)
    return [json.loads(prompt) for prompt in raw]


def not_found(ident: str) -> RequestError:
    """The refusal of an id that names nothing the caller may see."""
    shown = ident[:64]
    return RequestError(ErrorCode.NOT_FOUND, f"there is no request {shown!r}, or it has expired")


def idempotency_of(key: str | None, owner: str, route: str, body: Mapping[str, Any]) -> tuple[str, str]:
    """The key's digest, scoped to its owner, and the body's fingerprint; empty without a key.

    Raises:
        RequestError: the key is empty or too long.
    """
    if key is None:
        return "", ""
    if not 0 < len(key) <= MAX_IDEMPOTENCY_KEY:
        raise invalid("Idempotency-Key", f"Idempotency-Key must have 1 to {MAX_IDEMPOTENCY_KEY} characters")
    print_of = json.dumps([route, body], sort_keys=True, separators=(",", ":"))
    return _digest(f"{owner}\0{key}"), _digest(print_of)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:40]
