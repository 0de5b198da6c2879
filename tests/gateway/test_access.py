"""Who may ask for what: keys, ownership, ids, and requests that are sent twice."""

import asyncio
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from services.gateway.app import ROUTERS
from services.gateway.auth import OPEN_PATHS, ApiKeys
from shared.errors import SettingsError
from tests.gateway.conftest import Stack, StackFactory, bytes_script, eventually
from tests.gateway.test_refusals import check_envelope

KEY, OTHER = "sk-alice-0123456789", "sk-other-42"


@pytest.fixture
async def locked(make_stack: StackFactory, tmp_path: Path) -> Stack:
    path = tmp_path / "keys"
    path.write_text(f"# comment\nalice:{KEY}\n\n{OTHER}\n")
    stack = await make_stack(bytes_script("hello"), api_key_file=path)
    stack.http.headers["Authorization"] = f"Bearer {KEY}"
    return stack


async def test_every_route_needs_a_key_but_the_probes(locked: Stack) -> None:
    """Walks the application's own table, so that a new route cannot be forgotten."""
    for route in (r for router in ROUTERS for r in router.routes if isinstance(r, APIRoute)):
        path = route.path.replace("{id}", "x").replace("{name:path}", "x")
        for method in sorted(route.methods or ()):
            for given in (None, "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer", ""):
                headers = {"Authorization": given} if given is not None else {}
                request = locked.http.build_request(method, path, content=b"{}")
                del request.headers["Authorization"]
                request.headers.update(headers)
                response = await locked.http.send(request)
                if path in OPEN_PATHS:
                    assert response.status_code == 200
                elif method != "HEAD":
                    check_envelope(response, 401, "invalid_api_key", None)
                    assert response.headers["www-authenticate"] == "Bearer"
                else:
                    assert response.status_code == 401


@pytest.mark.parametrize("path", ["//v1/models", "/v1/models/", "/V1/models", "/v1/none", "/healthz/"])
async def test_no_spelling_of_a_path_gets_around_the_key(locked: Stack, path: str) -> None:
    response = await locked.http.get(httpx.URL(f"http://gateway{path}"), headers={"Authorization": ""})
    assert response.status_code == 401


async def test_records_belong_to_the_key_that_made_them(locked: Stack) -> None:
    made = await locked.complete(max_tokens=9)
    assert made.status_code == 200
    path = f"/v1/requests/{made.json()['id']}"
    assert (await locked.http.get(path)).json()["state"] == "completed"
    stranger = {"Authorization": f"Bearer {OTHER}"}
    for response in (
        await locked.http.get(path, headers=stranger),
        await locked.http.get(f"{path}/events", headers=stranger),
        await locked.http.delete(path, headers=stranger),
    ):
        check_envelope(response, 404, "not_found")
    body = locked.pool.hget(locked.gateway.keys.request(made.json()["id"]), "body")
    assert isinstance(body, bytes)
    assert b'"owner":"alice"' in body
    assert KEY.encode() not in body


@pytest.mark.parametrize("text", ["", "# only a comment\n", "a b\n", "x:\n", f"a:{KEY}\nb:{KEY}\n"])
def test_an_unusable_key_file_stops_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        ApiKeys.load(path)
    assert KEY not in str(caught.value)


# -- ids


async def test_ids_are_the_servers_and_the_clients_own_comes_back_cleaned(make_stack: StackFactory) -> None:
    stack = await make_stack()
    cases = [
        ({"X-Request-Id": "mine"}, "mine"),
        ({"X-Request-Id": "mine", "X-Client-Request-Id": "client-7"}, "client-7"),
        ({"X-Client-Request-Id": "a b*:{c}"}, "abc"),
        ({"X-Client-Request-Id": "y" * 10_000}, "y" * 128),
        ({"X-Client-Request-Id": "***"}, None),
        ({}, None),
    ]
    seen = set()
    for given, returned in cases:
        response = await stack.http.get("/v1/models", headers=given)
        assert response.headers.get("x-client-request-id") == returned
        seen.add(response.headers["x-request-id"])
    assert len(seen) == len(cases)
    refused = await stack.chat(temperature=9)
    assert refused.headers["x-request-id"].startswith("chatcmpl-")


# -- the same request twice


async def test_a_repeat_with_the_same_key_gets_the_first_answer(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    stack.http.headers["Idempotency-Key"] = "order-1"
    first = await stack.complete(max_tokens=9, seed=3)
    again = await stack.complete(max_tokens=9, seed=3)
    assert again.json() == first.json()
    assert again.headers["x-request-id"] == first.json()["id"]
    check_envelope(await stack.complete(max_tokens=8, seed=3), 409, "idempotency_conflict")
    stack.http.headers["Idempotency-Key"] = "k" * 256
    check_envelope(await stack.complete(max_tokens=9), 400, "invalid_value", "Idempotency-Key")


async def test_a_repeat_joins_a_running_stream(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    stack.http.headers["Idempotency-Key"] = "order-2"
    stack.backend.limit = 2
    one = asyncio.create_task(stack.complete(max_tokens=9, stream=True))
    await eventually(lambda: any(m.index == 2 for m in stack.backend.held.values()))
    two = asyncio.create_task(stack.complete(max_tokens=9, stream=True))
    (stream,) = stack.gateway.hub.streams
    await eventually(lambda: stream.readers == 2)
    stack.backend.limit = None
    assert (await one).text == (await two).text


async def test_the_key_of_a_cancelled_request_is_free_again(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    stack.http.headers["Idempotency-Key"] = "order-3"
    stack.backend.go.clear()
    call = asyncio.create_task(stack.complete(max_tokens=9))
    await eventually(lambda: bool(stack.backend.held))
    (ident,) = stack.backend.held
    await stack.http.delete(f"/v1/requests/{ident}")
    assert (await call).status_code == 499
    stack.backend.go.set()
    again = await stack.complete(max_tokens=9)
    assert again.status_code == 200
    assert again.json()["id"] != ident
