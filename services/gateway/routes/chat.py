"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from services.gateway.routes.generate import generate

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    """Answer a conversation."""
    return await generate(request, "chat")
