"""Settings that outlive processes: one hash in the pool, changed in one step with the news of it.

A new leader reads the hash; the one at work hears of each change through its inbox, in order with
everything else that its decisions depend on.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from shared.channels.calls import Argument, Call
from shared.errors import DecodeError
from shared.keys import Keys
from shared.protocol.settings import RuntimeSettings


def change(keys: Keys, changes: RuntimeSettings) -> Call[RuntimeSettings]:
    """Set the fields that `changes` sets (None among them: as started); returns what holds now."""
    values = changes.model_dump(exclude_unset=True)
    args: list[Argument] = []
    for name, value in values.items():
        args += [name, json.dumps(value)]
    return Call("change_settings", (keys.settings, keys.inbox), tuple(args), parse)


def parse(fields: Sequence[Any]) -> RuntimeSettings:
    """Settings from names and JSON values in turn; names of a later version are ignored.

    Raises:
        DecodeError: a value is unreadable or out of its range.
    """
    texts = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in fields]
    try:
        values = {name: json.loads(value) for name, value in zip(texts[::2], texts[1::2], strict=True)}
        return RuntimeSettings.model_validate(values)
    except (ValueError, ValidationError) as error:
        raise DecodeError(f"runtime settings: {error}", repr(texts).encode()) from None
