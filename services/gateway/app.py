"""Builds the application: one gateway's parts, its routes, and the envelope around every error."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import metadata

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from services.gateway import openapi
from services.gateway.auth import ApiKeys
from services.gateway.context import Gateway
from services.gateway.cors import with_cors
from services.gateway.errors import error_response
from services.gateway.group_log import Follower
from services.gateway.hub import Hub
from services.gateway.intake import Intake
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import RequestFrame
from services.gateway.presence import Presence
from services.gateway.routes import chat, completions, iterations, models, ops, requests
from services.gateway.routes import settings as runtime
from services.gateway.settings import GatewaySettings
from services.gateway.tasks import cancel_all
from services.gateway.tokenization import ModelText
from shared.channels.calls import AsyncPool, connect_async
from shared.channels.presence import new_id
from shared.channels.server_check import check_server_async
from shared.channels.tokens import EventSubscription
from shared.errors import ErrorCode, RequestError, SettingsError
from shared.keys import Keys
from shared.observability.logging import RateLimit
from shared.protocol.result import GatewayStatus

LOG = logging.getLogger(__name__)
ROUTERS = [module.router for module in (completions, chat, models, requests, iterations, runtime, ops)]
_FRAMEWORK_CODES = {
    404: (ErrorCode.NOT_FOUND, "there is nothing at this path"),
    405: (ErrorCode.METHOD_NOT_ALLOWED, "this path does not take this method"),
}


def build_gateway(settings: GatewaySettings, *, url: str = "") -> Gateway:
    """Put one gateway together. Must run in the event loop that will serve.

    Raises:
        SettingsError: the model or the key file cannot be used.
    """
    model = ModelText.load(settings.model)
    if settings.max_model_len is not None and settings.max_model_len > model.max_model_len:
        raise SettingsError(
            f"--max-model-len: the model's context is {model.max_model_len}, not {settings.max_model_len}"
        )
    api_keys = ApiKeys.load(settings.api_key_file)
    keys, client = Keys(settings.served_name), connect_async(settings.redis_url)
    pool, metrics = AsyncPool(client), GatewayMetrics()
    status = GatewayStatus(id=new_id(settings.gateway_id), url=url)
    follower = Follower(
        pool, keys, status.id, model.vocabulary, metrics, settings.stall_timeout, settings.record_ttl
    )
    hub = Hub(follower)
    subscription = EventSubscription(
        client, keys, lambda: status.id, on_event=hub.deliver, on_subscribed=hub.resubscribed
    )
    limit = settings.max_model_len or model.max_model_len
    return Gateway(
        settings=settings,
        model=model,
        api_keys=api_keys,
        keys=keys,
        client=client,
        pool=pool,
        metrics=metrics,
        hub=hub,
        presence=Presence(pool, keys, status, limit),
        subscription=subscription,
        intake=Intake(model, settings.served_name, settings.default_max_tokens),
        started=int(time.time()),
    )


def build_app(gateway: Gateway) -> ASGIApp:
    """The ASGI application of one gateway. It has no lifespan: `running` is its life."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    for router in ROUTERS:
        app.include_router(router)
    app.state.gateway = gateway
    app.state.openapi = openapi.document(list(described_routes()), metadata.version("orca-serving"))
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(Exception, _unexpected)
    return with_cors(RequestFrame(app, gateway), gateway.settings.origins)


def described_routes() -> Iterator[tuple[str, str, str]]:
    """Every route as (path, method, the first line of what it does)."""
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            summary = (route.endpoint.__doc__ or "").strip().partition("\n")[0]
            for method in sorted(route.methods or ()):
                yield route.path.replace(":path}", "}"), method.lower(), summary


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator["asyncio.Task[None]"]:
    """Keep a gateway's presence and subscription while the block runs.

    Yields the task of its work in the background, which only ends by a fault.
    """
    task = asyncio.create_task(_work(gateway))
    try:
        yield task
    finally:
        await gateway.hub.close()
        await gateway.presence.leave()
        await cancel_all([task])
        await gateway.client.aclose(close_connection_pool=True)
        gateway.model.close()


async def _work(gateway: Gateway) -> None:
    await _wait_for_redis(gateway)
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.presence.run())
        group.create_task(gateway.subscription.run())


async def _wait_for_redis(gateway: Gateway) -> None:
    """Wait until the server answers; then see whether it is fit.

    Raises:
        SettingsError: it is too old, or may evict what the pool keeps in it.
    """
    limit = RateLimit()
    while True:
        try:
            gateway.hub.shared.server.run_id = await check_server_async(gateway.client)
        except (RedisError, OSError, TimeoutError) as error:
            if limit.ready("redis"):
                LOG.warning("waiting for Redis: %s", error)
            await asyncio.sleep(0.2)
        else:
            return


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message = _FRAMEWORK_CODES.get(
        error.status_code, (ErrorCode.INVALID_VALUE, "this request is invalid")
    )
    response = error_response(RequestError(code, message))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    """The log has the details; the client gets an id to ask about."""
    ident = request.state.request_id
    LOG.error("unexpected error", exc_info=error, extra={"request_id": ident})
    return error_response(
        RequestError(ErrorCode.INTERNAL_ERROR, f"the server failed on this request ({ident})")
    )
