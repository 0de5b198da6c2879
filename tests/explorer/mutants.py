"""Every check of every script, deleted one at a time.

Knows just enough of Lua to find conditions: tokens, `if ... then`, operands of `and` / `or`,
comparisons, and the options of commands that are conditions too. Knows nothing of what they mean.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.explorer.server import SCRIPTS

LUA = Path(__file__).parents[2] / "shared/channels/lua"
TOKEN = re.compile(r"--[^\n]*|'[^'\n]*'|[A-Za-z_]\w*|\d+|~=|==|<=|>=|\.\.|[^\s\w]")
NEIGHBOUR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "=="}
STARTS = ("if", "elseif", "return", "=", "and", "or", ",", "then", "do", "not", ";")
ENDS = ("then", "and", "or", ",", "do", "end", ";")
OPTIONS = ("NOMKSTREAM", "XX", "NX", "KEEPTTL")


@dataclass(frozen=True)
class Mutant:
    """One script without one of its checks."""

    file: str
    line: int
    what: str
    text: str
    """The whole changed file."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"

    def sources(self) -> dict[str, str]:
        """The changed source of every script that has this file in it."""
        lib = self.text if self.file == "_lib" else (LUA / "_lib.lua").read_text("utf-8")
        if self.file != "_lib":
            return {self.file: lib + self.text}
        return {name: lib + (LUA / f"{name}.lua").read_text("utf-8") for name in SCRIPTS}


@dataclass(frozen=True)
class Token:
    """A word of Lua and where it stands."""

    text: str
    start: int
    end: int
    line: int


def tokens(text: str) -> list[Token]:
    return [
        Token(m.group(), m.start(), m.end(), text.count("\n", 0, m.start()) + 1)
        for m in TOKEN.finditer(text)
        if not m.group().startswith("--")
    ]


def mutants(file: str) -> list[Mutant]:
    """All mutants of one file, each text once."""
    text = (LUA / f"{file}.lua").read_text("utf-8")
    words = tokens(text)
    found: dict[str, Mutant] = {}
    for start, end, new, what in (
        *_conditions(words), *_operands(words), *_comparisons(words), *_options(words)
    ):  # fmt: skip
        changed = text[:start] + new + text[end:]
        line = text.count("\n", 0, start) + 1
        found.setdefault(changed, Mutant(file, line, f"{what}: {text[start:end]!r} -> {new!r}", changed))
    return list(found.values())


Change = tuple[int, int, str, str]


def _conditions(words: list[Token]) -> Iterator[Change]:
    for place, word in enumerate(words):
        if word.text in ("if", "elseif"):
            then = next(i for i in range(place, len(words)) if words[i].text == "then")
            for value in ("false", "true"):
                yield words[place + 1].start, words[then - 1].end, value, f"always {value}"


def _operands(words: list[Token]) -> Iterator[Change]:
    for place, word in enumerate(words):
        if word.text in ("and", "or"):
            left, right = _left(words, place), _right(words, place)
            yield words[left].start, words[place + 1].start, "", f"left of `{word.text}` deleted"
            yield words[place - 1].end, words[right].end, "", f"right of `{word.text}` deleted"


def _left(words: list[Token], place: int) -> int:
    depth = 0
    for i in range(place - 1, -1, -1):
        text = words[i].text
        if depth == 0 and (text in STARTS or text in "({[" or text.startswith("local")):
            return i + 1 if text != "not" else i
        depth += (text in ")]}") - (text in "({[")
    return 0


def _right(words: list[Token], place: int) -> int:
    depth = 0
    for i in range(place + 1, len(words)):
        text = words[i].text
        depth += (text in "({[") - (text in ")]}")
        ended = i + 1 == len(words) or words[i + 1].text in ENDS
        new_line = not ended and words[i + 1].line > words[i].line
        closed = not ended and words[i + 1].text in ")]}"
        if depth == 0 and i > place and (ended or new_line or closed):
            return i
    return len(words) - 1


def _comparisons(words: list[Token]) -> Iterator[Change]:
    for word in words:
        if word.text in NEIGHBOUR:
            yield word.start, word.end, NEIGHBOUR[word.text], "another comparison"


def _options(words: list[Token]) -> Iterator[Change]:
    for word in words:
        if word.text.strip("'") in OPTIONS:
            yield word.start - 2, word.end, "", "option deleted"


ALL = tuple(m for file in ("_lib", *SCRIPTS) for m in mutants(file))
