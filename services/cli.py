"""`orca`: finds the subcommand and hands over. Services are started by name, never imported."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata

SERVICES = {
    "gateway": "the HTTP door; any number",
    "scheduler": "decides each iteration; one leads, others stand by",
    "engine": "runs the model; any number",
}
COMMANDS = {
    "up": "the whole stack on this machine",
    "ps": "the processes of a running orca up",
    "chat": "talk to the model in the terminal",
    "doctor": "check the installation, Redis, the model and the ports",
}


def usage() -> str:
    lines = ["usage: orca [--version] COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {name:<11}{text}" for name, text in {**COMMANDS, **SERVICES}.items()]
    lines += [
        "",
        "examples:",
        "  orca up                  serve the demo model on http://127.0.0.1:8000",
        "  orca up --engines 2      with two engines",
        "  orca chat                talk to it",
        "  orca COMMAND --help      the options of a command",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"orca {metadata.version('orca-serving')}")
        return 0
    name, rest = words[0], words[1:]
    if name in COMMANDS:
        command: Callable[[Sequence[str]], int] = import_module(f"services.command.{name}").main
        return command(rest)
    if name in SERVICES:
        # The process becomes the service, so that signals and the exit code are its own.
        os.execv(sys.executable, [sys.executable, "-m", f"services.{name}", *rest])  # noqa: S606
    print(f"orca: no command {name!r}\n\n{usage()}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
