"""`/v1/requests/{id}`: the record of a request, its events again, and cancelling it."""

from typing import Any

from fastapi import APIRouter, Request
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, Response

from services.gateway import admission
from services.gateway.context import Gateway, gateway_of
from services.gateway.errors import error_body, invalid, known_code
from services.gateway.openai_schema import Json
from services.gateway.responses import StreamedAnswer
from services.gateway.routes.generate import renderer_of
from shared.channels import request_pool
from shared.channels.request_pool import Record
from shared.errors import ErrorCode, RequestError
from shared.protocol.token import State

router = APIRouter()

END_PATIENCE = 5.0


async def _own_records(request: Request) -> list[Record]:
    """The records that an id names: all choices of a request, or the one of `<id>.<choice>`.

    Raises:
        RequestError: `not_found` for an unknown id and for another key's.
    """
    gateway, ident = gateway_of(request), request.path_params["id"]
    group, dot, choice = ident.partition(".")
    if dot and choice:
        record = await admission.read_record(gateway, ident, group)
        records = [record] if record else []
    else:
        records = await admission.read_group(gateway, group) if not dot else []
    if not records or records[0].request.owner != request.state.owner:
        raise admission.not_found(ident)
    return records


@router.get("/v1/requests/{id}")
async def show(request: Request) -> Response:
    """Where a request stands."""
    records = await _own_records(request)
    gateway = gateway_of(request)
    body = _summary(request.path_params["id"], records)
    body["queue_position"] = await _queue_position(gateway, records)
    if len(records) > 1:
        body["choices"] = [_summary(record.request.id, [record]) for record in records]
    return JSONResponse(body)


def _summary(ident: str, records: list[Record]) -> Json:
    """One record, or several as one: the worst ending, the least advanced state."""
    first = min(records, key=_rank)
    failed = first if first.code or first.state in (State.FAILED, State.CANCELLED) else None
    times: dict[str, float] = {}
    for record in records:
        for name, at in record.times.items():
            later = max if name == "ended" else min
            times[name] = later(times.get(name, at), at)
    if not all(record.state.ended for record in records):
        times.pop("ended", None)
    return {
        "id": ident,
        "object": "request",
        "state": first.state.value,
        "tokens": sum(record.n_tokens for record in records),
        "prompt_tokens": first.request.n_prompt,
        "engine": first.engine or None,
        "attempt": max(record.attempt for record in records),
        "finish_reason": first.finish_reason or None,
        "error": _error(failed) if failed else None,
        "times": times,
    }


def _rank(record: Record) -> int:
    order = (State.FAILED, State.CANCELLED, State.WAITING, State.RUNNING, State.COMPLETED)
    open_first = {State.WAITING: -1, State.RUNNING: -2}
    return open_first.get(record.state, order.index(record.state))


def _error(record: Record) -> Json:
    cancelled = record.state == State.CANCELLED
    code = known_code(record.code) if record.code else ErrorCode.REQUEST_CANCELLED
    message = record.message or ("the request was cancelled" if cancelled else "the request failed")
    return dict(error_body(RequestError(code, message))["error"])


async def _queue_position(gateway: Gateway, records: list[Record]) -> int | None:
    """How many waiting sequences come first, from 0; None for one that does not wait.

    Open sequences of earlier arrival, less those that run: exact while running ones are older.
    """
    waiting = [record for record in records if record.state == State.WAITING]
    if not waiting:
        return None
    head = min(waiting, key=lambda record: record.arrival)
    try:
        rank: Any = await gateway.client.zrank(gateway.keys.open, head.request.id)
        running: Any = await gateway.client.hget(gateway.keys.totals, "running")
    except (RedisError, OSError):
        raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None
    return None if rank is None else max(0, int(rank) - int(running or 0))


@router.delete("/v1/requests/{id}")
async def cancel(request: Request) -> Response:
    """Cancel every choice; one that has ended stays as it is."""
    gateway = gateway_of(request)
    for record in await _own_records(request):
        call = request_pool.end(
            gateway.keys,
            request=record.request,
            outcome=State.CANCELLED,
            code=ErrorCode.REQUEST_CANCELLED,
            message="the request was cancelled",
        )
        try:
            await gateway.pool.run(call, patience=END_PATIENCE)
        except (RedisError, OSError):
            raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: try again later") from None
    return Response(status_code=204)


@router.get("/v1/requests/{id}/events")
async def events(request: Request) -> Response:
    """The request's events again, from behind `Last-Event-ID` on; reading here never cancels."""
    gateway, group = gateway_of(request), request.path_params["id"]
    admission.check_open(gateway)
    stream = await admission.attach(gateway, group, owner=request.state.owner)
    first = _first_event(request.headers.get("last-event-id"), group)
    return StreamedAnswer(gateway.hub, stream, renderer_of(gateway, stream), first=first, cancels=False)


def _first_event(last: str | None, group: str) -> int:
    if last is None:
        return 0
    head, _, number = last.rpartition(":")
    if head != group or not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise invalid("Last-Event-ID", "Last-Event-ID is no event of this request")
    return int(number) + 1
