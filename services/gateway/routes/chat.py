"""`POST /v1/chat/completions`."""

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from services.gateway.routes.generate import generate


async def chat(request: Request) -> ASGIApp:
    """Answer a conversation."""
    return await generate(request, "chat")


routes = [Route("/v1/chat/completions", chat, methods=["POST"])]
