"""Text to token ids for one model. Knows the model's directory; knows no request and no HTTP.

The slow parts run in threads: tokenizing a long text must not stop the streams of others.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from services.gateway.chat_template import ChatTemplate, load_chat_template, special_token
from services.gateway.errors import invalid, too_long
from services.gateway.vocabulary import TextDecoder, Vocabulary
from shared.errors import SettingsError

T = TypeVar("T")
THREADS = 2


class ModelText:
    """Tokenizer, chat template and limits of the served model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Vocabulary,
        *,
        max_model_len: int,
        vocab_size: int,
        bos: int | None,
        template: ChatTemplate | None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        """Ids from here on name no token."""
        self.bos = bos
        self.template = template
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")

    @classmethod
    def load(cls, directory: Path) -> "ModelText":
        """Read a model directory.

        Raises:
            SettingsError: a file is missing or unusable; says which.
        """
        if not directory.is_dir():
            raise SettingsError(f"--model: there is no directory {directory}; name one with a model in it")
        config = _read_json(directory / "config.json")
        names = _read_json(directory / "tokenizer_config.json", optional=True)
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise SettingsError(f"--model: {directory} has no tokenizer.json; convert the model's tokenizer")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
            raise SettingsError(f"--model: {path} cannot be read: {error}") from None
        limit = config.get("max_position_embeddings") or config.get("n_positions")
        if not isinstance(limit, int):
            raise SettingsError(f"--model: {directory}/config.json names no max_position_embeddings")
        generation = _read_json(directory / "generation_config.json", optional=True)
        eos = _end_ids(config) | _end_ids(generation) | _named_ids(tokenizer, names, "eos_token")
        vocabulary = Vocabulary(tokenizer, eos)
        bos = _named_ids(tokenizer, names, "bos_token")
        return cls(
            tokenizer,
            vocabulary,
            max_model_len=limit,
            vocab_size=min(int(config.get("vocab_size", vocabulary.size)), vocabulary.size),
            bos=min(bos, default=None),
            template=load_chat_template(directory, names),
        )

    async def encode(self, texts: Sequence[str], *, param: str, context: int) -> list[tuple[int, ...]]:
        """Token ids of each text, with the tokenizer's own special tokens around them.

        Raises:
            RequestError: not encodable, or certainly longer than the context.
        """
        for text in texts:
            self._check_text(text, param, context)
        return await self._in_thread(lambda: [self._encode(text, special=True) for text in texts])

    async def encode_chat(self, messages: Sequence[Mapping[str, str]], *, context: int) -> tuple[int, ...]:
        """Token ids of a conversation, up to where the assistant speaks.

        Raises:
            RequestError: no template, a conversation that it refuses, or one that is too long.
        """
        template = self.template
        if template is None:
            raise invalid(
                "messages", "this model has no chat template: use /v1/completions, or serve a chat model"
            )
        for message in messages:
            self._check_text(message["content"], "messages", context)
        total = sum(len(message["content"]) for message in messages)
        self._check_length(total, "messages", context)
        return await self._in_thread(lambda: self._encode(template.render(messages), special=False))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a whole sequence."""
        decoder = TextDecoder(self.vocabulary)
        return decoder.feed(tokens) + decoder.flush()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def _check_text(self, text: str, param: str, context: int) -> None:
        self._check_length(len(text), param, context)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise invalid(param, f"{param} holds half of a surrogate pair, which is no character") from None

    def _check_length(self, characters: int, param: str, context: int) -> None:
        """A cheap bound, so that a giant text costs no tokenizing: no token is longer than the longest."""
        least = -(-characters // self.vocabulary.longest)
        if least > context:
            raise too_long(context, least, param, at_least=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if not path.is_file():
        if optional:
            return {}
        raise SettingsError(
            f"--model: {path.parent} has no {path.name}; it is no Hugging Face model directory"
        )
    try:
        content: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise SettingsError(f"--model: {path} is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"--model: {path} holds no JSON object")
    return content


def _end_ids(config: Mapping[str, Any]) -> set[int]:
    value = config.get("eos_token_id")
    return {i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)}


def _named_ids(tokenizer: Tokenizer, names: Mapping[str, Any], name: str) -> set[int]:
    text = special_token(names, name)
    ident = None if text is None else tokenizer.token_to_id(text)
    return set() if ident is None else {ident}
