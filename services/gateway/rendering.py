"""Pieces of an answer as OpenAI's objects: chunks, whole answers, scores. Pure."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from services.gateway.answer import Answer, Piece, ScoredToken
from services.gateway.openai_schema import Json, usage
from services.gateway.vocabulary import Vocabulary
from shared.protocol.request import GenerationRequest

FLOOR = -9999.0
"""What an impossible token's log probability is given as: JSON knows no infinity."""


def to_json(value: Any) -> str:
    """Strict JSON in ASCII: no reader takes U+2028 or U+0085 in it for the end of a line."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class Renderer:
    """Makes the JSON of one answer."""

    def __init__(self, answer: Answer, vocabulary: Vocabulary, model: str) -> None:
        self._answer = answer
        self._vocabulary = vocabulary
        request: GenerationRequest = answer.choices[0].request
        self._rendering = request.rendering
        self._chat = request.rendering.route == "chat"
        self._head: Json = {"id": request.group, "created": request.rendering.created, "model": model}

    def chunk(self, piece: Piece) -> Json:
        """One streamed event."""
        choice: Json = {"index": piece.choice}
        if self._chat:
            choice["delta"] = self._delta(piece)
            kind = "chat.completion.chunk"
        else:
            choice["text"] = piece.text
            kind = "text_completion"
        choice["logprobs"] = self._logprobs(piece.tokens) if piece.tokens else None
        choice["finish_reason"] = piece.finish_reason.value if piece.finish_reason else None
        chunk = {**self._head, "object": kind, "choices": [choice]}
        if self._rendering.include_usage:
            chunk["usage"] = None
        return chunk

    @staticmethod
    def _delta(piece: Piece) -> Json:
        if piece.first:
            return {"role": "assistant", "content": ""}
        return {} if piece.finish_reason else {"content": piece.text}

    def usage_chunk(self) -> Json:
        """The last chunk of a stream that asked for usage."""
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [], "usage": self._usage()}

    def whole(self) -> Json:
        """The answer of a request that is not streamed."""
        kind = "chat.completion" if self._chat else "text_completion"
        choices = [self._whole_choice(c.request.choice) for c in self._answer.choices]
        return {**self._head, "object": kind, "choices": choices, "usage": self._usage()}

    def _whole_choice(self, number: int) -> Json:
        pieces = [piece for piece in self._answer.pieces if piece.choice == number]
        text = "".join(piece.text for piece in pieces)
        tokens = [token for piece in pieces for token in piece.tokens]
        reason = pieces[-1].finish_reason
        choice: Json = {"index": number}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        asked = self._rendering.logprobs is not None
        choice["logprobs"] = self._logprobs(tokens) if asked else None
        choice["finish_reason"] = reason.value if reason else None
        return choice

    def _usage(self) -> Json:
        return usage(self._answer.n_prompt, self._answer.n_completion)

    def _logprobs(self, tokens: Sequence[ScoredToken]) -> Json:
        if self._chat:
            return {"content": [self._chat_entry(token) for token in tokens], "refusal": None}
        top = self._rendering.logprobs or 0
        return {
            "tokens": [self._name(token.entry.token) for token in tokens],
            "token_logprobs": [None if token.first else finite(token.entry.logprob) for token in tokens],
            "top_logprobs": [self._top(token, top) for token in tokens] if top else None,
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, token: ScoredToken, count: int) -> dict[str, float] | None:
        """The likeliest tokens and, as OpenAI does, the chosen one beside them."""
        if token.first:
            return None
        top = [*token.entry.top[:count], (token.entry.token, finite(token.entry.logprob))]
        return {self._name(ident): finite(logprob) for ident, logprob in top}

    def _chat_entry(self, token: ScoredToken) -> Json:
        top: Iterable[tuple[int, float]] = token.entry.top[: self._rendering.logprobs]
        entry = self._named(token.entry.token, token.entry.logprob)
        entry["top_logprobs"] = [self._named(ident, logprob) for ident, logprob in top]
        return entry

    def _named(self, token: int, logprob: float | None) -> Json:
        raw = self._vocabulary.raw(token)
        return {"token": raw.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(raw)}

    def _name(self, token: int) -> str:
        """A token's text; a part of a character is named by its bytes, so that no two are alike."""
        raw = self._vocabulary.raw(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float | None) -> float:
    """A log probability that strict JSON can hold."""
    return FLOOR if logprob is None or not math.isfinite(logprob) else max(logprob, FLOOR)
