"""What an operator sees: readiness, metrics, records, iterations, limits in time."""

import asyncio
import time
from functools import partial

from prometheus_client.parser import text_string_to_metric_families

from services.gateway.stream import GroupStream
from shared.channels import request_pool
from shared.channels.calls import AsyncPool
from shared.protocol.token import State
from tests.gateway.conftest import MODEL, Stack, StackFactory, bytes_script, eventually
from tests.gateway.test_generation import events
from tests.gateway.test_refusals import check_envelope


def holds(stack: Stack, count: int) -> bool:
    return len(stack.backend.held) == count


def has_readers(stream: GroupStream, count: int) -> bool:
    return stream.readers == count


def is_done(stream: GroupStream) -> bool:
    return stream.done


async def metric(stack: Stack, name: str, **labels: str) -> float:
    page = (await stack.http.get("/metrics")).text
    samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
    found = [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
    assert found, f"no {name}"
    return sum(found)


async def test_readiness_names_what_is_missing(make_stack: StackFactory) -> None:
    stack = await make_stack(backend=False)
    message = check_envelope(await stack.http.get("/readyz"), 503, "not_ready")
    assert "no scheduler leads" in message
    assert "no engine is present" in message
    assert (await stack.http.get("/health")).status_code == 200
    await stack.backend.start()
    assert (await stack.http.get("/readyz")).status_code == 200


async def test_metrics_tell_of_the_cluster_and_of_this_process(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    await stack.complete(["ab", "cd"], n=2, max_tokens=4)
    await stack.complete(max_tokens=0)
    await eventually(lambda: stack.pool.hget(stack.gateway.keys.totals, "requests:rejected") == b"1")
    expected = {"completed": 1, "rejected": 1, "cancelled": 0, "failed": 0}
    for outcome, value in expected.items():
        assert await metric(stack, "orca_requests_total", outcome=outcome) == value
    assert await metric(stack, "orca_prompt_tokens_total") == 4
    assert await metric(stack, "orca_generated_tokens_total") == 16
    assert await metric(stack, "orca_kv_slots", engine="engine-0") == 10_000
    assert await metric(stack, "orca_engines") == 1
    assert await metric(stack, "orca_requests_running") == 0
    assert await metric(stack, "orca_requests_waiting") == 0
    for name, count in (("time_to_first_token", 1), ("request_duration", 1), ("inter_token", 12)):
        assert await metric(stack, f"orca_{name}_seconds_count") == count


async def test_a_waiting_request_has_its_place_and_a_finished_one_its_times(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    stack.backend.go.clear()
    calls = []
    for count in (1, 2, 3):
        calls.append(asyncio.create_task(stack.complete(max_tokens=9)))
        await eventually(partial(holds, stack, count))
    for position, ident in enumerate(stack.backend.held):
        record = (await stack.http.get(f"/v1/requests/{ident}")).json()
        assert (record["id"], record["state"], record["queue_position"]) == (ident, "waiting", position)
    stack.backend.go.set()
    for call in calls:
        ident = (await call).json()["id"]
        record = (await stack.http.get(f"/v1/requests/{ident}")).json()
        assert (record["state"], record["tokens"], record["attempt"]) == ("completed", 6, 0)
        assert record["engine"].startswith("engine-0")
        assert record["queue_position"] is None
        assert record["error"] is None
        times = record["times"]
        assert times["submitted"] <= times["started"] <= times["first_token"] <= times["ended"]


async def test_choices_have_records_of_their_own(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    ident = (await stack.complete(n=2, max_tokens=3)).json()["id"]
    whole = (await stack.http.get(f"/v1/requests/{ident}")).json()
    assert (whole["tokens"], [c["id"] for c in whole["choices"]]) == (6, [f"{ident}.0", f"{ident}.1"])
    one = (await stack.http.get(f"/v1/requests/{ident}.1")).json()
    assert (one["id"], one["tokens"], one["finish_reason"]) == (f"{ident}.1", 3, "length")


async def test_iterations_are_listed_oldest_first(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    ident = (await stack.complete(max_tokens=3)).json()["id"]
    data = (await stack.http.get("/v1/iterations")).json()["data"]
    assert [entry["number"] for entry in data] == [1, 2, 3]
    assert data[0]["members"] == [{"id": ident, "phase": "prefill", "tokens": 1}]
    assert data[0]["engine"] == "engine-0"
    after = (await stack.http.get("/v1/iterations", params={"engine": "engine-0", "after": 2})).json()
    assert [entry["number"] for entry in after["data"]] == [3]


async def test_models_show_the_context(make_stack: StackFactory) -> None:
    stack = await make_stack()
    listed = (await stack.http.get("/v1/models")).json()
    one = (await stack.http.get(f"/v1/models/{MODEL}")).json()
    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["max_model_len"]) == (MODEL, "model", 256)


async def test_a_silent_engine_ends_the_stream_at_the_stall_limit(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"), stall_timeout=2)
    stack.backend.limit = 2
    started = time.monotonic()
    response = await stack.complete(max_tokens=9, stream=True)
    assert 1.9 < time.monotonic() - started < 8
    *_, error = events(response)
    assert error["error"]["code"] == "stall_timeout"
    record = (await stack.http.get(f"/v1/requests/{response.headers['x-request-id']}")).json()
    assert (record["state"], record["error"]["code"]) == ("failed", "stall_timeout")


async def test_waiting_is_no_stall_and_a_queue_timeout_has_its_status(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"), stall_timeout=0.3)
    stack.backend.go.clear()
    call = asyncio.create_task(stack.complete(max_tokens=9))
    await eventually(lambda: bool(stack.backend.held))
    (running,) = stack.backend.held.values()
    await asyncio.wait([call], timeout=2.5)
    assert not call.done()
    await AsyncPool(stack.gateway.client).run(
        request_pool.end(
            stack.gateway.keys, request=running.request, outcome=State.FAILED, code="queue_timeout"
        )
    )
    response = await call
    check_envelope(response, 503, "queue_timeout")
    assert response.headers["retry-after"]


async def test_timeout_seconds_ends_a_request_honestly(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    stack.backend.limit = 2
    check_envelope(await stack.complete(max_tokens=9, timeout_seconds=0.3), 408, "request_timeout")
    assert stack.pool.zcard(stack.gateway.keys.open) == 0


async def test_scores_are_given_for_every_token(make_stack: StackFactory) -> None:
    from shared.protocol.token import TokenEntry

    def script(request: object, prompt: list[int]) -> list[TokenEntry]:
        tops = ((0xC3, -0.5), (104, -1.5))
        return [TokenEntry(token=t, logprob=-0.5, top=tops) for t in (0xC3, 0xA9, 104)]

    stack = await make_stack(script)
    whole = (await stack.complete(max_tokens=3, logprobs=2)).json()["choices"][0]
    scores = whole["logprobs"]
    assert (whole["text"], scores["text_offset"]) == ("\u00e9h", [0, 0, 1])
    assert scores["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", "h"]
    assert scores["top_logprobs"][2] == {"bytes:\\xc3": -0.5, "h": -0.5}
    chat = (await stack.chat(max_tokens=3, logprobs=True, top_logprobs=1, stream=True)).text
    assert chat.count('"bytes":[195]') == 4  # each token's alternative, and the first one's own
    none = (await stack.complete(max_tokens=3)).json()["choices"][0]
    assert none["logprobs"] is None


async def test_the_prompt_is_echoed_in_front(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    assert (await stack.complete("a  b", echo=True, max_tokens=9)).json()["choices"][0]["text"] == "a  bhello"


async def test_tokenize_and_detokenize_are_inverse(make_stack: StackFactory) -> None:
    stack = await make_stack()
    for text in ("the h\u00e9 \U0001f600", ""):
        body = {"model": MODEL, "prompt": text}
        got = (await stack.http.post("/tokenize", json=body)).json()
        assert got["count"] == len(got["tokens"])
        back = await stack.http.post("/detokenize", json={"model": MODEL, "tokens": got["tokens"]})
        assert back.json() == {"prompt": text}
    check_envelope(await stack.http.post("/tokenize", json={"model": MODEL}), 400, "invalid_value", "prompt")
    bad = {"model": MODEL, "tokens": [10**12]}
    check_envelope(await stack.http.post("/detokenize", json=bad), 400, "invalid_value", "tokens")


async def test_a_reader_that_leaves_with_finish_or_resume_keeps_the_request(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    hub = stack.gateway.hub
    for fields in ({"on_disconnect": "finish"}, {"resume_seconds": 30}):
        stack.backend.limit = 2
        call = asyncio.create_task(stack.complete(max_tokens=9, **fields))
        await eventually(lambda: any(m.index == 2 for m in stack.backend.held.values()))
        (stream,) = hub.streams
        await eventually(partial(has_readers, stream, 1))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert stream.readers == 0
        stack.backend.limit = None
        await eventually(partial(is_done, stream))
        record = (await stack.http.get(f"/v1/requests/{stream.group}")).json()
        assert (record["state"], record["tokens"]) == ("completed", 6)


async def test_a_reader_that_does_not_come_back_in_time_cancels(make_stack: StackFactory) -> None:
    stack = await make_stack(bytes_script("hello"))
    stack.backend.limit = 2
    call = asyncio.create_task(stack.complete(max_tokens=9, resume_seconds=0.1))
    await eventually(lambda: any(m.index == 2 for m in stack.backend.held.values()))
    (stream,) = stack.gateway.hub.streams
    call.cancel()
    await eventually(lambda: stack.pool.hget(stack.gateway.keys.totals, "requests:cancelled") == b"1")
    await eventually(lambda: stream.done)
