"""The fields whose form a schema cannot tell well: prompts, messages, token ids, stop strings.

Each check names the field and the first bad value, and bounds the work before doing it.
"""

from collections.abc import Sequence
from typing import Any

from services.gateway.errors import invalid, too_long
from services.gateway.openai_schema import MAX_BIASES, MAX_CHOICES, MAX_STOP_CHARACTERS, MAX_STOPS
from shared.errors import RequestError

SHOWN = 40
"""Characters of a bad value that a message repeats."""


def shown(value: Any) -> str:
    """A bad value as a message shows it: short, whatever it was."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def prompts(value: Any, vocab_size: int) -> tuple[list[str], list[tuple[int, ...]]]:
    """The four forms of `prompt`: texts, or lists of token ids; one of the two results is empty.

    Raises:
        RequestError: another form, a bad token id, or too many prompts.
    """
    if isinstance(value, str):
        return [value], []
    if not isinstance(value, list):
        raise invalid(
            "prompt", f"prompt must be a string, a list of strings or of token ids, not {shown(value)}"
        )
    if not value:
        return [], [()]
    if isinstance(value[0], str):
        _check_count(value)
        for text in value:
            if not isinstance(text, str):
                raise invalid("prompt", f"prompt mixes strings with {shown(text)}")
        return value, []
    if isinstance(value[0], list):
        _check_count(value)
        return [], [_prompt_ids(ids, vocab_size) for ids in value]
    return [], [_prompt_ids(value, vocab_size)]


def _check_count(value: Sequence[Any]) -> None:
    if len(value) > MAX_CHOICES:
        raise invalid("prompt", f"prompt may hold {MAX_CHOICES} prompts at most, not {len(value)}")


def _prompt_ids(value: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise invalid("prompt", f"prompt mixes lists of token ids with {shown(value)}")
    return token_ids(value, "prompt", vocab_size)


def token_ids(value: Any, param: str, vocab_size: int, most: int | None = None) -> tuple[int, ...]:
    """A list of ids of the vocabulary; None is an empty one.

    Raises:
        RequestError: no list, too long, or an id that names no token.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid(param, f"{param} must be a list of token ids, not {shown(value)}")
    if most is not None and len(value) > most:
        raise invalid(param, f"{param} may hold {most} token ids at most, not {len(value)}")
    for ident in value:
        if type(ident) is not int or not 0 <= ident < vocab_size:
            raise invalid(param, f"{param}: {shown(ident)} is no token id; ids go from 0 to {vocab_size - 1}")
    return tuple(value)


def messages(value: Any, context: int) -> list[dict[str, str]]:
    """A conversation, with the text parts of each message joined by line breaks.

    Raises:
        RequestError: anything but a list of messages with a role and text, or more of them than
            the context has tokens.
    """
    if not isinstance(value, list):
        raise invalid("messages", f"messages must be a list, not {shown(value)}")
    if not value:
        raise invalid("messages", "messages is empty: send at least one message")
    if len(value) > context:
        raise too_long(context, len(value), "messages", at_least=True)
    return [_message(message, at) for at, message in enumerate(value)]


def _message(message: Any, at: int) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _bad_message(at, "must be an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not role or len(role) > 64:
        raise _bad_message(at, "needs a role: system, user or assistant")
    plain = {"role": role, "content": _content(message.get("content"), at)}
    name = message.get("name")
    if isinstance(name, str):
        plain["name"] = name
    if message.get("tool_calls") or message.get("function_call"):
        raise _bad_message(at, "has tool calls, which this server does not support")
    return plain


def _content(content: Any, at: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad_message(at, "needs content: a string, or a list of text parts")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise _bad_message(at, "has a part that is no text; only text parts are supported")
        if not isinstance(part.get("text"), str):
            raise _bad_message(at, "has a text part without text")
        texts.append(part["text"])
    return "\n".join(texts)


def _bad_message(at: int, what: str) -> RequestError:
    return invalid("messages", f"message {at} {what}")


def stops(value: Any) -> tuple[str, ...]:
    """`stop`: a string or a list of them.

    Raises:
        RequestError: another type, an empty string, or more or longer ones than allowed.
    """
    if value is None:
        return ()
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(stop, str) for stop in listed):
        raise invalid("stop", "stop must be a string or a list of strings")
    if len(listed) > MAX_STOPS:
        raise invalid("stop", f"stop may hold {MAX_STOPS} strings at most, not {len(listed)}")
    for stop in listed:
        if not stop:
            raise invalid("stop", "stop holds an empty string, which is everywhere")
        if len(stop) > MAX_STOP_CHARACTERS:
            raise invalid("stop", f"a stop string may have {MAX_STOP_CHARACTERS} characters at most")
        if any("\ud800" <= char <= "\udfff" for char in stop):
            raise invalid("stop", "stop holds half of a surrogate pair, which is no character")
    return tuple(listed)


def logit_bias(value: Any, vocab_size: int) -> dict[int, float]:
    """`logit_bias`: token id (a string, as JSON has it) -> bias.

    Raises:
        RequestError: no object, too many entries, an id that names no token, a bias out of range.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("logit_bias", "logit_bias must be an object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise invalid("logit_bias", f"logit_bias may hold {MAX_BIASES} tokens at most, not {len(value)}")
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20 and int(key) < vocab_size):
            raise invalid(
                "logit_bias", f"logit_bias: {shown(key)} is no token id; ids go from 0 to {vocab_size - 1}"
            )
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise invalid("logit_bias", f"logit_bias: {shown(bias)} is no number from -100 to 100")
        biases[int(key)] = float(bias)
    return biases
