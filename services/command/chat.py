"""`orca chat`: a conversation in the terminal, streamed over the public HTTP interface."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
from pydantic import Field

from shared.errors import SettingsError
from shared.settings import Settings

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 60.0


class ChatSettings(Settings):
    """Whom to talk to."""

    url: str = Field("http://127.0.0.1:8000", description="where the gateway listens")
    default_max_tokens: int = Field(512, ge=1, description="longest answer, in tokens")


class ChatFailed(Exception):
    """The server refused or went silent; the message is its own."""


def stream(client: httpx.Client, body: dict[str, Any]) -> Iterator[str]:
    """The pieces of one answer, as they come.

    Raises:
        ChatFailed: a refusal, or an error in the middle of the stream.
        httpx.HTTPError: no connection, or it broke.
    """
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            answer.read()
            raise ChatFailed(_message(answer.text))
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise ChatFailed(str(event["error"].get("message", data)))
            for choice in event.get("choices", []):
                yield choice.get("delta", {}).get("content") or ""


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "the server gave no reason"


def converse(client: httpx.Client, limit: int) -> None:
    """Read a line, stream the answer, remember both; until end of input."""
    model = client.get("/v1/models").raise_for_status().json()["data"][0]["id"]
    print(f"talking to {model}; an empty line or Ctrl-D ends", file=sys.stderr)
    messages: list[dict[str, str]] = []
    while said := _ask():
        messages.append({"role": "user", "content": said})
        pieces = []
        try:
            for piece in stream(client, {"model": model, "messages": messages, "max_tokens": limit}):
                pieces.append(piece)
                print(piece, end="", flush=True)
            print()
        except ChatFailed as error:
            print(f"\norca: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": "".join(pieces)})


def _ask() -> str:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def main(argv: Sequence[str]) -> int:
    """Talk; exit code 1 where the server cannot be reached."""
    try:
        settings = ChatSettings.load(argv, prog="orca chat", description=DESCRIPTION, examples=EXAMPLES)
    except SettingsError as error:
        print(f"orca: {error}", file=sys.stderr)
        return 2
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    try:
        with httpx.Client(base_url=settings.url, headers=headers, timeout=timeout) as client:
            converse(client, settings.default_max_tokens)
    except httpx.HTTPStatusError as error:
        print(f"orca: {_message(error.response.text)}", file=sys.stderr)
        return 1
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"orca: no answer from {settings.url} ({error}); start it with: orca up", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
    return 0


DESCRIPTION = (
    "Talk to the model, streaming. --url names the server; OPENAI_API_KEY the key, where it has keys."
)
EXAMPLES = """\
  orca chat
  orca chat --url http://127.0.0.1:8000
  echo 'What is the capital of France?' | orca chat"""
