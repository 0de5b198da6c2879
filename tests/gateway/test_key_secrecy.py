"""Keys and texts never reach the log, whatever happens to the request."""

import logging
from pathlib import Path

import pytest

from tests.gateway.conftest import StackFactory, bytes_script

KEY, WRONG, PROMPT = "sk-secret-0123456789", "sk-mistyped-42", "what nobody else may read"


@pytest.mark.parametrize("script", ["hello", "fails"])
async def test_no_key_and_no_text_is_logged(
    make_stack: StackFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"alice:{KEY}\n")
    tokens = (lambda request, prompt: [-1]) if script == "fails" else bytes_script("an answer")
    with caplog.at_level(logging.DEBUG):
        stack = await make_stack(tokens, api_key_file=path)
        for given in (KEY, WRONG):
            stack.http.headers["Authorization"] = f"Bearer {given}"
            for fields in ({}, {"stream": True}, {"temperature": 9}, {"tools": [PROMPT]}):
                await stack.complete(PROMPT, **fields)
                await stack.chat(PROMPT, **fields)
            await stack.http.get(f"/v1/requests/{given}")
    assert caplog.records
    for record in caplog.records:
        line = f"{record.getMessage()} {record.__dict__}"
        for secret in (KEY, WRONG, PROMPT, "an answer"):
            assert secret not in line or record.name.startswith(("httpx", "httpcore"))
