"""`POST /v1/completions`, and the tokenizer behind it: `/tokenize` and `/detokenize`."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from services.gateway.body import parse, read_json
from services.gateway.checks import messages, token_ids
from services.gateway.context import gateway_of
from services.gateway.errors import invalid
from services.gateway.intake import check_model
from services.gateway.openai_schema import DetokenizeBody, TokenizeBody
from services.gateway.routes.generate import generate

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue one or more prompts."""
    return await generate(request, "completions")


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Token ids of a text or of a conversation."""
    gateway = gateway_of(request)
    fields = parse(TokenizeBody, await read_json(request, gateway.settings.max_body_bytes))
    check_model(fields.model, gateway.settings.served_name)
    if (fields.prompt is None) == (fields.messages is None):
        raise invalid("prompt", "send either prompt or messages")
    context = gateway.presence.context
    if fields.prompt is not None:
        (ids,) = await gateway.model.encode([fields.prompt], param="prompt", context=context)
    else:
        ids = await gateway.model.encode_chat(messages(fields.messages, context), context=context)
    return JSONResponse({"tokens": list(ids), "count": len(ids), "max_model_len": context})


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    gateway = gateway_of(request)
    fields = parse(DetokenizeBody, await read_json(request, gateway.settings.max_body_bytes))
    check_model(fields.model, gateway.settings.served_name)
    if fields.tokens is None:
        raise invalid("tokens", "tokens is required")
    ids = token_ids(fields.tokens, "tokens", gateway.model.vocab_size)
    return JSONResponse({"prompt": gateway.model.decode(ids)})
