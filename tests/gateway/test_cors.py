"""Pages of other origins may use the server only where they are named."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.gateway.settings import GatewaySettings
from tests.gateway.conftest import StackFactory

PAGE = {"Origin": "https://chat.example"}
PREFLIGHT = {
    **PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}


async def test_without_the_option_no_answer_speaks_of_origins(make_stack: StackFactory) -> None:
    stack = await make_stack()
    for response in (
        await stack.http.get("/v1/models", headers=PAGE),
        await stack.http.options("/v1/completions", headers=PREFLIGHT),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_named_origin_may_ask_with_a_key_and_read_the_ids(
    make_stack: StackFactory, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:sk-a\n")
    stack = await make_stack(cors_origins="https://chat.example, http://localhost:3000", api_key_file=keys)
    preflight = await stack.http.options("/v1/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE["Origin"]
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    refused = await stack.http.get("/v1/models", headers=PAGE)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE["Origin"], "a page may read the refusal"
    stream = await stack.http.post(
        "/v1/completions",
        headers={**PAGE, "Authorization": "Bearer sk-a"},
        json={"model": "test-model", "prompt": "a", "max_tokens": 3, "stream": True},
    )
    assert stream.text.endswith("data: [DONE]\n\n")
    assert "X-Request-Id" in stream.headers["access-control-expose-headers"]


async def test_another_origin_is_given_nothing(make_stack: StackFactory) -> None:
    stack = await make_stack(cors_origins="https://chat.example")
    other = {**PREFLIGHT, "Origin": "https://evil.example"}
    assert (await stack.http.options("/v1/completions", headers=other)).status_code == 400
    answer = await stack.http.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("text", ["chat.example", "https://chat.example/path", "ftp://a", "https://a,b"])
def test_what_is_no_origin_stops_the_start(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="is no origin"):
        GatewaySettings.model_validate(
            {"redis_url": "redis://x", "served_name": "m", "model": tmp_path, "cors_origins": text}
        )
