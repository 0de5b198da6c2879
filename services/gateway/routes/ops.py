"""Probes and metrics."""

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from redis.exceptions import RedisError
from starlette.responses import JSONResponse, PlainTextResponse, Response

from services.gateway.context import gateway_of
from shared.errors import ErrorCode, RequestError

router = APIRouter()


@router.get("/health")
@router.get("/healthz")
async def health(request: Request) -> Response:
    """Alive: the event loop answers."""
    return PlainTextResponse("ok\n")


@router.get("/readyz")
async def ready(request: Request) -> Response:
    """Ready, or what is missing."""
    gateway = gateway_of(request)
    missing = "this gateway is stopping" if gateway.draining else await gateway.presence.missing()
    if not missing and not gateway.subscription.subscribed.is_set():
        missing = "events are not subscribed yet"
    if missing:
        raise RequestError(ErrorCode.NOT_READY, f"not ready: {missing}")
    return PlainTextResponse("ready\n")


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """This interface, as an OpenAPI document."""
    return JSONResponse(request.app.state.openapi)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The cluster's counters and gauges, and this process's histograms."""
    gateway = gateway_of(request)
    try:
        view = await gateway.presence.look()
        names = sorted({engine.name for engine in view.engines})
        await gateway.metrics.iterations.catch_up(gateway.client, gateway.keys, names)
    except (RedisError, OSError, TimeoutError):
        raise RequestError(ErrorCode.NOT_READY, "Redis does not answer: no metrics") from None
    return Response(gateway.metrics.page(view), media_type=CONTENT_TYPE_LATEST)
