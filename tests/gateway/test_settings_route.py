"""`/v1/settings`: who may change what, and that a change is kept and heard."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway.app import build_app
from shared.channels.runtime_settings import parse
from shared.errors import DecodeError
from shared.protocol.inbox import INBOX_EVENT, SettingsChanged
from shared.protocol.wire import decode
from tests.gateway.conftest import Stack, StackFactory
from tests.gateway.test_refusals import check_envelope

UNSET = {"object": "settings", "max_batch_size": None, "queue_timeout": None}
PATH = "/v1/settings"


def heard(stack: Stack) -> list[SettingsChanged]:
    """The changes in the scheduler's inbox."""
    entries: Any = stack.pool.xrange(stack.gateway.keys.inbox)
    events = [decode(INBOX_EVENT, fields[b"m"]) for _, fields in entries]
    return [event for event in events if isinstance(event, SettingsChanged)]


async def test_a_change_is_kept_and_told_to_the_scheduler(make_stack: StackFactory) -> None:
    stack = await make_stack()
    assert (await stack.http.get(PATH)).json() == UNSET
    first = await stack.http.patch(PATH, json={"max_batch_size": 8})
    assert first.json() == {**UNSET, "max_batch_size": 8}
    second = await stack.http.patch(PATH, json={"queue_timeout": 2.5})
    assert second.json() == (await stack.http.get(PATH)).json() == {**first.json(), "queue_timeout": 2.5}
    back = await stack.http.patch(PATH, json={"max_batch_size": None})
    assert back.json() == {**UNSET, "queue_timeout": 2.5}
    changes = [parse(event.fields) for event in heard(stack)]
    assert [change.max_batch_size for change in changes] == [8, 8, None]
    assert [change.queue_timeout for change in changes] == [None, 2.5, 2.5]
    assert stack.pool.ttl(stack.gateway.keys.settings) == -1, "it holds until it is changed again"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"max_batch_size": 4097}, "max_batch_size"),
        ({"max_batch_size": "8"}, "max_batch_size"),
        ({"max_batch_size": True}, "max_batch_size"),
        ({"queue_timeout": -1}, "queue_timeout"),
        ({"queue_timeout": 1e9}, "queue_timeout"),
        ({"max_batchsize": 8}, "max_batchsize"),
        ({"max_batch_size": 4, "x" * 500: 1}, "x" * 64),
    ],
)
async def test_a_bad_change_is_refused_by_name_and_changes_nothing(
    make_stack: StackFactory, body: dict[str, Any], param: str | None
) -> None:
    stack = await make_stack(backend=False)
    check_envelope(await stack.http.patch(PATH, json=body), 400, "invalid_value", param)
    assert not stack.pool.exists(stack.gateway.keys.settings)
    assert heard(stack) == []


async def test_with_keys_only_an_admin_may_see_or_change_them(
    make_stack: StackFactory, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_text("alice:sk-a admin\nbob:sk-b\nsk-c admin\n")
    stack = await make_stack(backend=False, api_key_file=path)
    for key, allowed in (("sk-a", True), ("sk-b", False), ("sk-c", True)):
        headers = {"Authorization": f"Bearer {key}"}
        for response in (
            await stack.http.get(PATH, headers=headers),
            await stack.http.patch(PATH, headers=headers, json={"queue_timeout": 0}),
        ):
            if allowed:
                assert response.status_code == 200
            else:
                check_envelope(response, 401, "invalid_api_key")
                assert "admin" in response.json()["error"]["message"]


async def test_without_keys_they_are_for_this_machine(make_stack: StackFactory) -> None:
    stack = await make_stack(backend=False)
    for client, status in (("127.0.0.1", 200), ("::1", 200), ("192.0.2.7", 401)):
        transport = httpx.ASGITransport(build_app(stack.gateway), client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            assert (await http.get(PATH)).status_code == status


@pytest.mark.parametrize("fields", [("max_batch_size", "x"), ("max_batch_size", "0"), ("max_batch_size",)])
def test_unreadable_settings_are_named_not_obeyed(fields: tuple[str, ...]) -> None:
    with pytest.raises(DecodeError, match="runtime settings"):
        parse(fields)
