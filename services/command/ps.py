"""`orca ps`: the processes of a running `orca up`, from its state directory."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from services.command.state import Row, StateDir
from shared.errors import SettingsError
from shared.settings import Settings


class PsSettings(Settings):
    """Where to look and how to print."""

    state_dir: Path = Field(Path(".orca"), description="the state directory of the running orca up")


def table(rows: Sequence[Row], now: float) -> str:
    """The rows for a reader."""
    lines = [f"{'SERVICE':<11}{'INDEX':>5}  {'PID':>8}  {'UP':>8}  URL"]
    for row in rows:
        age = f"{max(0.0, now - row.started):.0f} s"
        lines.append(f"{row.service:<11}{row.index:>5}  {row.pid:>8}  {age:>8}  {row.url or ''}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Print the processes; exit code 1 where nothing runs."""
    argv = list(argv)
    as_json = "--json" in argv
    try:
        settings = PsSettings.load(
            [word for word in argv if word != "--json"],
            prog="orca ps",
            description=DESCRIPTION,
            examples=EXAMPLES,
        )
    except SettingsError as error:
        print(f"orca: {error}", file=sys.stderr)
        return 2
    state = StateDir(settings.state_dir)
    rows = state.read()
    if rows is None:
        print(f"orca: nothing runs in {state.path}; start it with: orca up", file=sys.stderr)
        return 1
    print(json.dumps([row.to_dict() for row in rows]) if as_json else table(rows, time.time()))
    return 0


DESCRIPTION = "List the processes of a running orca up. --json prints one JSON array."
EXAMPLES = """\
  orca ps
  orca ps --json --state-dir /var/lib/orca"""
