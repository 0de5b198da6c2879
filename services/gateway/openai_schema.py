"""The public JSON: what bodies may hold and what answers look like. Nothing else.

Bodies are strict: a number is no string and true is no number. `null` means absent. Unknown
fields are ignored; known ones that are not supported are refused by name (`UNSUPPORTED`).
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_CHOICES = 128
"""Sequences of one request: prompts times `n`."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1_000
MAX_LOGPROBS = 20
MAX_BIASES = 1_024
MAX_STOP_TOKEN_IDS = 256
MAX_USER_CHARACTERS = 512

_ANY_ROUTE: dict[str, tuple[Any, ...]] = {
    "suffix": ("",),
    "best_of": (1,),
    "prediction": (),
    "prompt_logprobs": (0,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
UNSUPPORTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "completions": {**_ANY_ROUTE, "response_format": ({"type": "text"},)},
    "chat": {
        **_ANY_ROUTE,
        "tools": ([],),
        "functions": ([],),
        "tool_choice": ("none",),
        "function_call": ("none",),
        "response_format": ({"type": "text"},),
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "continue_final_message": (False,),
        "echo": (False,),
    },
}
"""Known and unsupported fields with the values that ask for nothing."""


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool | None = None


class GenerationBody(BaseModel):
    """What both routes understand."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stop: Any = None
    max_tokens: int | None = Field(None, ge=0)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: Any = None
    user: str | None = Field(None, max_length=MAX_USER_CHARACTERS)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    min_tokens: int = Field(0, ge=0)
    stop_token_ids: Any = None
    ignore_eos: bool = False
    priority: int = Field(0, ge=-10, le=10)
    timeout_seconds: float | None = Field(None, gt=0, le=86_400)
    on_disconnect: Literal["cancel", "finish"] = "cancel"
    resume_seconds: float = Field(0.0, ge=0, le=600)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Any
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Any
    max_completion_tokens: int | None = Field(None, ge=0)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)


class TokenizeBody(BaseModel):
    """`POST /tokenize`: a text or a conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str
    prompt: str | None = None
    messages: Any = None


class DetokenizeBody(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str
    tokens: Any


Json = dict[str, Any]


def usage(n_prompt: int, n_completion: int) -> Json:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "total_tokens": n_prompt + n_completion,
    }


def model_card(name: str, created: int, max_model_len: int) -> Json:
    """One entry of /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "orca",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
    }
