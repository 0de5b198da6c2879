"""Token ids as bytes. Knows the tokenizer's decoder; knows no request.

A token's text is not always text: it may be a part of a character, or hold the end of one and
the start of the next. So a vocabulary maps ids to *bytes*, and only an incremental UTF-8 decoder
makes text of them. This gives the same text however the tokens arrive.
"""

import codecs
import json
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from shared.errors import SettingsError

_PLAIN = ("Fuse",)


class Vocabulary:
    """What each token id adds to the text."""

    def __init__(self, tokenizer: Tokenizer, hidden: Iterable[int] = ()) -> None:
        """Args: `hidden`: ids beside the special tokens that never show, such as end-of-sequence.

        Raises:
            SettingsError: a decoder that does not work token by token.
        """
        decoder: dict[str, Any] | None = json.loads(tokenizer.to_str()).get("decoder")
        rules = _Rules(decoder)
        self.leading_spaces = rules.leading_spaces
        """Spaces that the tokenizer put in front of the text, and the decoder takes off."""
        added = tokenizer.get_added_tokens_decoder()
        self._pieces: dict[int, bytes] = {}
        for token, ident in tokenizer.get_vocab(with_added_tokens=True).items():
            self._pieces[ident] = token.encode() if ident in added else rules.to_bytes(token)
        special = {ident for ident, token in added.items() if token.special}
        self.hidden = frozenset(special | set(hidden))
        self.size = max(self._pieces) + 1
        self._longest = max(map(len, self._pieces.values()))

    @property
    def longest(self) -> int:
        """Bytes of the longest token: the least number of tokens of a text follows from it."""
        return self._longest

    def raw(self, token: int) -> bytes:
        """The token's own bytes, hidden or not; empty for an id without a token."""
        return self._pieces.get(token, b"")

    def shown(self, token: int) -> bytes:
        """What the token adds to the text."""
        return b"" if token in self.hidden else self.raw(token)


class TextDecoder:
    """Text from tokens, one after the other; holds back at most an unfinished character."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._leading = vocabulary.leading_spaces

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that these tokens complete."""
        return self._trim(self._utf8.decode(b"".join(map(self._vocabulary.shown, tokens))))

    def flush(self) -> str:
        """What is left at the end: bytes that never became a character, as U+FFFD."""
        return self._trim(self._utf8.decode(b"", final=True))

    def _trim(self, text: str) -> str:
        while self._leading and text:
            if text[0] != " ":
                self._leading = 0
                break
            text, self._leading = text[1:], self._leading - 1
        return text


class _Rules:
    """The tokenizer's decoder, reduced to what one token becomes."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        if decoder is None:
            raise SettingsError("the model's tokenizer.json has no decoder; use a model that has one")
        self.leading_spaces = 0
        self._byte_level = False
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        for part in decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]:
            self._add(part)
        self._bytes = {char: byte for byte, char in _byte_alphabet().items()}

    def _add(self, part: dict[str, Any]) -> None:
        kind = part["type"]
        if kind == "ByteLevel":
            self._byte_level = True
        elif kind == "ByteFallback":
            self._byte_fallback = True
        elif kind == "Replace" and "String" in part["pattern"]:
            self._replace.append((part["pattern"]["String"], part["content"]))
        elif kind == "Metaspace":
            self._replace.append((part["replacement"], " "))
            self.leading_spaces = 0 if part.get("prepend_scheme") == "never" else 1
        elif kind == "Strip" and part["content"] == " " and not part["stop"]:
            self.leading_spaces = part["start"]
        elif kind not in _PLAIN:
            raise SettingsError(
                f"the model's tokenizer uses the decoder {kind}, which cannot be streamed token by "
                "token; supported are byte-level and sentencepiece-style tokenizers"
            )

    def to_bytes(self, token: str) -> bytes:
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                pass
        if self._byte_level and all(char in self._bytes for char in token):
            return bytes(self._bytes[char] for char in token)
        for old, new in self._replace:
            token = token.replace(old, new)
        return token.encode()


def _byte_alphabet() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return {byte: chr(byte if byte in printable else next(spare)) for byte in range(256)}
