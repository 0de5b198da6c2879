"""What a client asked for, as one sequence: the immutable half of a record in the pool.

Knows token counts, never text. A request with several choices or prompts is a *group* of
sequences; a plain request is a group of one whose sequence id is the group id.
"""

from typing import Literal

from pydantic import Field

from shared.protocol.wire import Message, Versioned


class SamplingParams(Message):
    """How one sequence's tokens are chosen, and when it ends."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 means greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means off."""
    min_p: float = 0.0
    seed: int = 0
    """The gateway draws one for requests that bring none."""
    sample: int = 0
    """The sample's number within its prompt: with the seed it selects the random stream."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = Field(default_factory=dict)
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many alternatives to report per token; None reports nothing."""
    prompt_logprobs: bool = False
    """Report the prompt's own tokens too, in the first token's entry."""


class Rendering(Message):
    """What turning tokens into an answer needs; only gateways read it."""

    route: Literal["completions", "chat"]
    created: int
    stream: bool = False
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    echo: bool = False
    prompt_only: bool = False
    """`max_tokens` 0: the sequence is run for one token, which is neither shown nor counted."""
    logprobs: int | None = None
    user: str | None = None


class GenerationRequest(Versioned):
    """One sequence as it was asked for. Written once, at submit."""

    kind: Literal["request"] = "request"
    id: str
    group: str
    choice: int = 0
    n_choices: int = 1
    """Sequences in the group, over all prompts."""
    prompt_index: int = 0
    n_prompt: int
    """Tokens of the prompt."""
    sampling: SamplingParams
    rendering: Rendering
    owner: str = ""
    """Name of the API key's holder; empty where the server is open."""
    priority: int = 0
    on_disconnect: Literal["cancel", "finish"] = "cancel"
    resume_seconds: float = 0.0
    timeout_seconds: float | None = None
    fault: str = ""
    """The fault header, only with --test-faults."""

    @property
    def reserved_slots(self) -> int:
        """K/V slots of the whole sequence: what ORCA's Algorithm 1 calls max_tokens."""
        return self.n_prompt + self.sampling.max_new_tokens
