"""Writes docs/protocol.md from shared/: the names, the messages and the atomic steps.

Knows where their descriptions stand (docstrings and the head of each script) and nothing of what
they mean. With --check it compares instead of writing, so the document cannot drift.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "shared" / "channels" / "lua"
MESSAGES = ROOT / "shared" / "protocol"
TARGET = ROOT / "docs" / "protocol.md"

HEAD = """\
# Protocol

Written by `make docs` from `shared/keys.py`, `shared/protocol/` and the heads of
`shared/channels/lua/`; do not edit. Control travels here and tensors never do. Payloads are
versioned JSON. Every name starts with `orca:v{version}:{{<model>}}:`; the braces are a hash tag, so all
of one model's names share a cluster slot and one script may touch several.
"""


def names() -> Iterator[str]:
    """A table row for each Redis name."""
    tree = ast.parse((ROOT / "shared" / "keys.py").read_text())
    keys = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Keys")
    yield "| name | what it is |"
    yield "|---|---|"
    for method in keys.body:
        if not isinstance(method, ast.FunctionDef) or method.name.startswith("_"):
            continue
        text = _one_line(ast.get_docstring(method))
        if method.name == "events_prefix":
            continue
        places = [f"<{argument.arg}>" for argument in method.args.args[1:]]
        yield f"| `{':'.join([method.name, *places])}` | {text} |"


def messages() -> Iterator[str]:
    """A table row for each message, with its fields."""
    yield "| message | where | what it is | fields |"
    yield "|---|---|---|---|"
    for path in sorted(MESSAGES.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and any(_is_message(base) for base in node.bases):
                fields = [
                    f"`{line.target.id}`"
                    for line in node.body
                    if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                ]
                text = _one_line(ast.get_docstring(node)).replace("|", "\\|")
                where = path.relative_to(ROOT)
                yield f"| `{node.name}` | `{where}` | {text} | {', '.join(fields)} |"


def _is_message(base: ast.expr) -> bool:
    return isinstance(base, ast.Name) and base.id in ("Message", "Versioned")


def steps() -> Iterator[str]:
    """A section for each atomic step: the head of its script, as it stands."""
    for path in sorted(SCRIPTS.glob("[!_]*.lua")):
        yield f"### {path.stem}\n"
        head = []
        for line in path.read_text().splitlines():
            if not line.startswith("--"):
                break
            head.append(line.removeprefix("--").removeprefix(" "))
        first = next(
            (i for i, line in enumerate(head) if re.match(r"(KEYS|ARGV|Returns)\b", line)), len(head)
        )
        yield " ".join(head[:first]) + "\n"
        if head[first:]:
            yield "```text\n" + "\n".join(head[first:]) + "\n```\n"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def document() -> str:
    """The whole file."""
    version = re.search(r"^PROTOCOL_VERSION = (\d+)", (ROOT / "shared" / "keys.py").read_text(), re.MULTILINE)
    parts = [HEAD.format(version=version.group(1) if version else "?"), "## Names\n", *names()]
    parts += ["\n## Messages\n", *messages()]
    parts += ["\n## Atomic steps\n"]
    parts += [
        "Each is one script and may be repeated after a lost reply. What stands before the keys is what it",
        "does; `FENCED` is the answer to a scheduler that leads no longer.\n",
        *steps(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    text = document()
    if "--check" in sys.argv[1:]:
        if not TARGET.is_file() or TARGET.read_text() != text:
            print("docs/protocol.md is not what shared/ says: run make docs", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
