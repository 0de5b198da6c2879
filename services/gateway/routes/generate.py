"""What both generation routes do: read, refuse or submit, answer."""

from starlette.requests import Request
from starlette.responses import Response

from services.gateway import admission
from services.gateway.body import read_json
from services.gateway.context import Gateway, gateway_of
from services.gateway.errors import invalid
from services.gateway.intake import Caller, Route
from services.gateway.rendering import Renderer
from services.gateway.responses import StreamedAnswer, WholeAnswer
from services.gateway.stream import GroupStream
from shared.errors import ErrorCode, RequestError

FAULT_HEADER = "x-orca-fault"


async def generate(request: Request, route: Route) -> Response:
    """Answer a completion or a chat.

    Raises:
        RequestError: everything that can be known before the first byte.
    """
    gateway = gateway_of(request)
    admission.check_open(gateway)
    body = await read_json(request, gateway.settings.max_body_bytes)
    caller = Caller(request.state.request_id, request.state.owner, await _fault(gateway, request))
    key, fingerprint = admission.idempotency_of(
        request.headers.get("idempotency-key"), caller.owner, route, body
    )
    requests, prompts = await gateway.intake.read(route, body, caller, gateway.presence.context)
    admission.check_fits(gateway, requests)
    stream = await admission.submit(gateway, requests, prompts, idempotency=key, fingerprint=fingerprint)
    request.state.accepted = True
    request.state.request_id = stream.group
    if requests[0].rendering.stream:
        return StreamedAnswer(gateway.hub, stream, renderer_of(gateway, stream))
    return WholeAnswer(gateway.hub, stream, renderer_of(gateway, stream))


def renderer_of(gateway: Gateway, stream: GroupStream) -> Renderer:
    """Makes the JSON of a stream's answer."""
    return Renderer(stream.answer, gateway.model.vocabulary, gateway.settings.served_name)


async def _fault(gateway: Gateway, request: Request) -> str:
    """The fault header, where the server obeys it; elsewhere it is a header like any other."""
    text = request.headers.get(FAULT_HEADER, "")
    if not (text and gateway.settings.test_faults):
        return ""
    from shared import faults

    try:
        await faults.tokenize(text)
    except ValueError as error:
        raise invalid("X-Orca-Fault", str(error)) from None
    except faults.InjectedFault as fault:
        raise RequestError(ErrorCode.INTERNAL_ERROR, str(fault)) from None
    return text
