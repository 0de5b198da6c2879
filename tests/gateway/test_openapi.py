"""The OpenAPI document is true, and nothing that follows or breaks it makes the server fail."""

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from services.gateway.app import described_routes
from services.gateway.errors import HTTP
from services.gateway.openai_schema import ChatBody, CompletionBody
from tests.gateway.conftest import MODEL, Stack, StackFactory, bytes_script

FUZZ = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Call = Callable[..., httpx.Response]


async def described(stack: Stack) -> dict[str, Any]:
    response = await stack.http.get("/openapi.json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


async def test_every_route_is_in_the_document_and_nothing_else(make_stack: StackFactory) -> None:
    document = await described(await make_stack(backend=False))
    found = {(path, method) for path, item in document["paths"].items() for method in item}
    assert found == {(path, method) for path, method, _ in described_routes()}
    for item in document["paths"].values():
        assert all(operation["summary"] for operation in item.values())


async def test_every_parameter_and_every_code_is_described(make_stack: StackFactory) -> None:
    schemas = (await described(await make_stack(backend=False)))["components"]["schemas"]
    for body in (CompletionBody, ChatBody):
        assert set(schemas[body.__name__]["properties"]) == set(body.model_fields)
        for name, field in schemas[body.__name__]["properties"].items():
            assert {"type", "anyOf", "enum", "const", "$ref"} & set(field), f"{name} has no form"
    codes = schemas["Error"]["properties"]["error"]["properties"]["code"]["enum"]
    assert set(codes) == {code.value for code in HTTP}


def fuzz(document: dict[str, Any], call: Call, seen: Counter[int]) -> None:
    """Send what the document allows, with short answers; whatever comes back is counted."""

    def send(case: Any) -> None:
        words = case.as_transport_kwargs(base_url="http://gateway")
        body = words.get("json")
        if isinstance(body, dict) and "model" in body:
            body |= {"model": MODEL, "max_tokens": 2, "n": 1}
        method, url, headers = words["method"], words["url"], dict(words.get("headers") or {})
        extra = {k: words[k] for k in ("params", "json", "data") if words.get(k) is not None}
        if isinstance(extra.get("data"), bytes | str):
            extra["content"] = extra.pop("data")
        response = call(method, url, headers=headers, **extra)
        seen[response.status_code] += 1
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        if response.status_code >= 400:
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}

    schema = schemathesis.openapi.from_dict(document)
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]
        FUZZ(given(case=operation.as_strategy())(send))()


@pytest.mark.timeout(120)
async def test_nothing_that_the_document_allows_makes_the_server_fail(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    document, loop = await described(stack), asyncio.get_running_loop()

    def call(method: str, url: str, **words: Any) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(stack.http.request(method, url, **words), loop).result(20)

    seen: Counter[int] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generator's own
        await asyncio.to_thread(fuzz, document, call, seen)
    assert seen[200] > 20, "much of it is answered"
    assert seen[400] > 20, "much of it is refused"
