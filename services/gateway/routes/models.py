"""`/v1/models`."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from services.gateway.context import Gateway, gateway_of
from services.gateway.intake import check_model
from services.gateway.openai_schema import Json, model_card

router = APIRouter()


def _card(gateway: Gateway) -> Json:
    return model_card(gateway.settings.served_name, gateway.started, gateway.presence.context)


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The one model of this server."""
    return JSONResponse({"object": "list", "data": [_card(gateway_of(request))]})


@router.get("/v1/models/{name:path}")
async def one_model(request: Request) -> Response:
    """A model by name; the name may hold slashes."""
    gateway = gateway_of(request)
    check_model(request.path_params["name"], gateway.settings.served_name)
    return JSONResponse(_card(gateway))
