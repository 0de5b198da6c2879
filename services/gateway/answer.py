"""An answer as a pure function of records and token logs. No clock, no Redis, no await.

Every gateway that plays the same logs makes the same pieces in the same order: that is what
lets a stream be numbered, read again and resumed anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.stop_strings import StopMatcher
from services.gateway.vocabulary import TextDecoder, Vocabulary
from shared.protocol.request import GenerationRequest
from shared.protocol.token import FinishReason, TokenEntry


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with its scores and where it begins in the choice's text."""

    entry: TokenEntry
    offset: int
    first: bool = False
    """The first token of a prompt: nothing before it could score it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a stream: a beginning, released text, or the end of a choice."""

    choice: int
    text: str = ""
    first: bool = False
    tokens: tuple[ScoredToken, ...] = ()
    """Scored tokens since the choice's last piece; only where scores were asked for."""
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Choice:
    """One sequence's progress from tokens to text."""

    request: GenerationRequest
    decoder: TextDecoder
    matcher: StopMatcher
    n_tokens: int = 0
    """Log entries read; once ended, those that count."""
    held: str = ""
    offset: int = 0
    """Characters decoded so far, held ones included."""
    scored: list[ScoredToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class Answer:
    """All choices of one group; `pieces` only ever grows."""

    def __init__(
        self, requests: Sequence[GenerationRequest], prompts: Sequence[Sequence[int]], vocabulary: Vocabulary
    ) -> None:
        self.pieces: list[Piece] = []
        self.choices: list[Choice] = []
        self._vocabulary = vocabulary
        for request in requests:
            choice = Choice(request, TextDecoder(vocabulary), StopMatcher(request.rendering.stop))
            self.choices.append(choice)
            self._begin(choice, prompts[request.prompt_index])

    def _begin(self, choice: Choice, prompt: Sequence[int]) -> None:
        rendering = choice.request.rendering
        number = choice.request.choice
        if choice.request.sampling.prompt_logprobs:
            return  # the echo comes with its scores, in the first token's entry
        # The prompt primes the decoder: it may end inside a character.
        prompt_text = choice.decoder.feed(prompt)
        if rendering.route == "chat":
            self.pieces.append(Piece(number, first=True))
        elif rendering.echo:
            choice.offset = len(prompt_text)
            self.pieces.append(Piece(number, prompt_text, first=True))

    def _echo_scored(self, choice: Choice, prompt: Sequence[TokenEntry]) -> None:
        """The echo and its scores as one piece; primes the decoder on the way."""
        text = ""
        for entry in prompt:
            choice.scored.append(ScoredToken(entry, len(text), first=not choice.scored))
            text += choice.decoder.feed((entry.token,))
        choice.offset = len(text)
        self.pieces.append(Piece(choice.request.choice, text, first=True, tokens=self._take_scored(choice)))

    @property
    def complete(self) -> bool:
        """Every choice has its finish reason."""
        return all(choice.finish_reason for choice in self.choices)

    @property
    def n_prompt(self) -> int:
        """Prompt tokens, each prompt once whatever its choices."""
        return sum({c.request.prompt_index: c.request.n_prompt for c in self.choices}.values())

    @property
    def n_completion(self) -> int:
        """Tokens that count, up to and including the one that ended each choice."""
        return sum(choice.n_tokens for choice in self.choices)

    def feed(self, number: int, entry: TokenEntry) -> bool:
        """Read a choice's next log entry; True when the pool has to be told that the choice ends here:
        the entry completes a stop string, or no token was wanted.

        Entries after the end of a choice change nothing.
        """
        choice = self.choices[number]
        if choice.finish_reason:
            return False
        if entry.prompt:
            self._echo_scored(choice, entry.prompt)
        if choice.request.rendering.prompt_only:
            self._end(choice, FinishReason.LENGTH)
            return True
        choice.n_tokens += 1
        if choice.request.rendering.logprobs is not None:
            choice.scored.append(ScoredToken(entry, choice.offset))
        if entry.token in choice.request.sampling.stop_token_ids:
            return False
        return self._release(choice, choice.decoder.feed((entry.token,)))

    def _release(self, choice: Choice, text: str) -> bool:
        choice.offset += len(text)
        cut = choice.matcher.feed(text)
        pending = choice.held + text
        if cut is not None:
            self._say(choice, pending[: len(choice.held) + cut])
            self._end(choice, FinishReason.STOP)
            return True
        keep = min(choice.matcher.held, len(pending))
        choice.held = pending[len(pending) - keep :]
        self._say(choice, pending[: len(pending) - keep])
        return False

    def finish(self, number: int, reason: FinishReason) -> None:
        """The record says that the choice is complete: pay out what was held."""
        choice = self.choices[number]
        if choice.finish_reason or self._release(choice, choice.decoder.flush()):
            return
        self._say(choice, choice.held)
        self._end(choice, reason)

    def _say(self, choice: Choice, text: str) -> None:
        if text:
            self.pieces.append(Piece(choice.request.choice, text, tokens=self._take_scored(choice)))

    def _end(self, choice: Choice, reason: FinishReason) -> None:
        choice.held = ""
        choice.finish_reason = reason
        self.pieces.append(
            Piece(choice.request.choice, tokens=self._take_scored(choice), finish_reason=reason)
        )

    @staticmethod
    def _take_scored(choice: Choice) -> tuple[ScoredToken, ...]:
        taken = tuple(choice.scored)
        choice.scored.clear()
        return taken
