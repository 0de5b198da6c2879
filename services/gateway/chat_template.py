"""The model's chat template: messages to prompt text, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.gateway.errors import invalid
from shared.errors import SettingsError

MAX_REASON = 300


class ChatTemplate:
    """Renders conversations; the model's author wrote it, so it is trusted with nothing."""

    def __init__(self, source: str, names: Mapping[str, str]) -> None:
        """Args: `names`: the special tokens a template may use, such as `bos_token`.

        Raises:
            SettingsError: the template is no Jinja template.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise SettingsError(f"the model's chat template is broken: {error.message}") from None
        self._names = dict(names)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that asks for the assistant's turn.

        Raises:
            RequestError: the template refuses the conversation; the reason is its own.
        """
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._names
            )
        except _Refused as refusal:
            reason = str(refusal)[:MAX_REASON]
            raise invalid(
                "messages", f"the model's chat template refuses this conversation: {reason}"
            ) from None
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
            # The reason would quote the template's source.
            raise invalid("messages", "the model's chat template cannot render this conversation") from None


class _Refused(jinja2.TemplateError):
    """The template called raise_exception."""


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def load_chat_template(directory: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The template of a model directory: `chat_template.jinja`, else in tokenizer_config.json."""
    path = directory / "chat_template.jinja"
    source = path.read_text("utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several named templates: the one for plain chat
        source = next((t["template"] for t in source if t.get("name") == "default"), None)
    if not source:
        return None
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"):
        value = special_token(config, name)
        if value is not None:
            names[name] = value
    return ChatTemplate(source, names)


def special_token(config: Mapping[str, Any], name: str) -> str | None:
    """A special token's text as tokenizer_config.json gives it: a string or an object."""
    value = config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
