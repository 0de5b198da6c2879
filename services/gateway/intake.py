"""OpenAI body -> sequences: validate, render, tokenise, clamp. Everything that can be refused
is refused here, before the first byte of an answer and before anything enters the pool.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.gateway.body import parse
from services.gateway.checks import logit_bias, messages, prompts, stops, token_ids
from services.gateway.errors import invalid, too_long
from services.gateway.openai_schema import (
    MAX_CHOICES,
    MAX_STOP_TOKEN_IDS,
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
    GenerationBody,
)
from services.gateway.tokenization import ModelText
from shared.errors import ErrorCode, RequestError
from shared.protocol.request import GenerationRequest, Rendering, SamplingParams

Route = Literal["completions", "chat"]
ID_PREFIX: dict[Route, str] = {"completions": "cmpl-", "chat": "chatcmpl-"}


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of a request beside its body."""

    group: str
    """The request's id, made by this server."""
    owner: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Intake:
    """The rules of one server: its model and limits."""

    model: ModelText
    served_name: str
    default_max_tokens: int

    async def read(
        self, route: Route, body: Mapping[str, Any], caller: Caller, context: int
    ) -> tuple[tuple[GenerationRequest, ...], tuple[tuple[int, ...], ...]]:
        """The sequences that a body asks for, and their prompts.

        Args:
            context: tokens that one sequence may have, prompt and answer together.

        Raises:
            RequestError: the first thing that is wrong with it.
        """
        refuse_unsupported(route, body)
        kind: type[CompletionBody] | type[ChatBody] = CompletionBody if route == "completions" else ChatBody
        fields: GenerationBody = parse(kind, dict(body))
        check_model(fields.model, self.served_name)
        limit, limit_name = self._limit(fields)
        if fields.stream_options is not None and not fields.stream:
            raise invalid("stream_options", "stream_options is only for stream: true")
        sampling = self._sampling(fields)
        rendering = _rendering(route, fields)
        ids = await self._prompts(fields, context)
        if len(ids) * fields.n > MAX_CHOICES:
            raise invalid("n", f"prompts times n may be {MAX_CHOICES} at most, not {len(ids) * fields.n}")
        longest = max(map(len, ids))
        if longest >= context:
            raise too_long(context, longest, _prompt_field(fields))
        if limit is not None and fields.min_tokens > limit:
            raise invalid("min_tokens", f"min_tokens may not be more than {limit_name}")
        return self._sequences(fields, caller, sampling, rendering, ids, limit, context), ids

    def _sequences(
        self,
        fields: GenerationBody,
        caller: Caller,
        sampling: SamplingParams,
        rendering: Rendering,
        ids: tuple[tuple[int, ...], ...],
        limit: int | None,
        context: int,
    ) -> tuple[GenerationRequest, ...]:
        total = len(ids) * fields.n
        requests = []
        for choice in range(total):
            k, sample = divmod(choice, fields.n)
            room = context - len(ids[k])
            wanted = self.default_max_tokens if limit is None else max(limit, 1)
            length = min(room, wanted or room)
            own = {"max_new_tokens": length, "min_tokens": min(fields.min_tokens, length), "sample": sample}
            requests.append(
                GenerationRequest(
                    id=caller.group if total == 1 else f"{caller.group}.{choice}",
                    group=caller.group,
                    choice=choice,
                    n_choices=total,
                    prompt_index=k,
                    n_prompt=len(ids[k]),
                    sampling=sampling.model_copy(update=own),
                    rendering=rendering,
                    owner=caller.owner,
                    priority=fields.priority,
                    on_disconnect=fields.on_disconnect,
                    resume_seconds=fields.resume_seconds,
                    timeout_seconds=fields.timeout_seconds,
                    fault=caller.fault,
                )
            )
        return tuple(requests)

    async def _prompts(self, fields: GenerationBody, context: int) -> tuple[tuple[int, ...], ...]:
        if isinstance(fields, ChatBody):
            conversation = messages(fields.messages, context)
            ids = await self.model.encode_chat(conversation, context=context)
            return (self._not_empty(ids, "messages"),)
        assert isinstance(fields, CompletionBody)
        texts, given = prompts(fields.prompt, self.model.vocab_size)
        encoded = await self.model.encode(texts, param="prompt", context=context) if texts else given
        return tuple(self._not_empty(ids, "prompt") for ids in encoded)

    def _not_empty(self, ids: tuple[int, ...], param: str) -> tuple[int, ...]:
        """An empty prompt is the model's beginning-of-sequence token, where it has one."""
        if ids:
            return ids
        if self.model.bos is None:
            raise invalid(param, f"{param} is empty, and this model has no token that begins a text")
        return (self.model.bos,)

    @staticmethod
    def _limit(fields: GenerationBody) -> tuple[int | None, str]:
        limit, name = fields.max_tokens, "max_tokens"
        if isinstance(fields, ChatBody) and fields.max_completion_tokens is not None:
            limit, name = fields.max_completion_tokens, "max_completion_tokens"
        if limit == 0 and not _echo(fields):
            raise invalid(name, f"{name} must be at least 1; 0 is only for completions with echo: true")
        return limit, name

    def _sampling(self, fields: GenerationBody) -> SamplingParams:
        size = self.model.vocab_size
        stop_ids = token_ids(fields.stop_token_ids, "stop_token_ids", size, MAX_STOP_TOKEN_IDS)
        return SamplingParams(
            max_new_tokens=1,
            temperature=fields.temperature,
            top_p=fields.top_p,
            top_k=max(fields.top_k, 0),
            min_p=fields.min_p,
            seed=secrets.randbits(63) if fields.seed is None else fields.seed,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            repetition_penalty=fields.repetition_penalty,
            logit_bias=logit_bias(fields.logit_bias, size),
            stop_token_ids=stop_ids,
            ignore_eos=fields.ignore_eos,
            logprobs=_logprobs(fields),
            prompt_logprobs=_echo(fields) and _logprobs(fields) is not None,
        )


def refuse_unsupported(route: Route, body: Mapping[str, Any]) -> None:
    """Refuse fields that are known and not supported, unless their value asks for nothing.

    Raises:
        RequestError: `unsupported_parameter` with the field's name.
    """
    for name, harmless in UNSUPPORTED[route].items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise RequestError(
                ErrorCode.UNSUPPORTED_PARAMETER, f"{name} is not supported by this server: leave it out", name
            )


def check_model(name: str, served_name: str) -> None:
    """Raises: RequestError: `model_not_found`."""
    if name != served_name:
        raise RequestError(
            ErrorCode.MODEL_NOT_FOUND, f"this server has no such model; it serves {served_name}", "model"
        )


def _prompt_field(fields: GenerationBody) -> str:
    return "messages" if isinstance(fields, ChatBody) else "prompt"


def _echo(fields: GenerationBody) -> bool:
    return isinstance(fields, CompletionBody) and fields.echo


def _logprobs(fields: GenerationBody) -> int | None:
    if isinstance(fields, ChatBody):
        if fields.top_logprobs and not fields.logprobs:
            raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
        return (fields.top_logprobs or 0) if fields.logprobs else None
    assert isinstance(fields, CompletionBody)
    return fields.logprobs


def _rendering(route: Route, fields: GenerationBody) -> Rendering:
    options = fields.stream_options
    return Rendering(
        route=route,
        created=int(time.time()),
        stream=fields.stream,
        include_usage=bool(options and options.include_usage),
        stop=stops(fields.stop),
        echo=_echo(fields),
        prompt_only=fields.max_tokens == 0,
        logprobs=_logprobs(fields),
        user=fields.user,
    )
