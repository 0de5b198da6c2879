"""Counts lines against the budgets: a function, a file, a package that outgrew its own fails.

Knows paths and numbers only. Counted are lines that hold code: neither blank lines nor comments nor
docstrings, so that nobody saves on explanations.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES = 50
FILE_LINES = 400
PACKAGE_LINES = {
    "shared": 1800,
    "services/gateway": 4200,
    "services/scheduler": 2000,
    "services/engine": 3500,
    "services/command": 2000,
    "services/offline": 900,
}


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def functions_over_budget(text: str) -> Iterator[tuple[str, int]]:
    """The functions of a file that are longer than FUNCTION_LINES, with their lengths."""
    lines = code_lines(text)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = len(lines & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
            if length > FUNCTION_LINES:
                yield node.name, length


def count(path: Path) -> int:
    return len(code_lines(path.read_text()))


def faults(root: Path) -> list[str]:
    """What is over its budget, one sentence each; empty when all is well."""
    found = []
    for folder in ("shared", "services", "tests", "scripts"):
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root)
            if count(path) > FILE_LINES:
                found.append(f"{name}: {count(path)} lines, over {FILE_LINES}")
            found += [
                f"{name}: {function} has {length} lines, over {FUNCTION_LINES}"
                for function, length in functions_over_budget(path.read_text())
            ]
    for package, budget in PACKAGE_LINES.items():
        total = sum(count(path) for path in (root / package).rglob("*.py"))
        if total > budget:
            found.append(f"{package}: {total} lines, over {budget}")
    return found


def main() -> int:
    found = faults(ROOT)
    for package, budget in PACKAGE_LINES.items():
        total = sum(count(path) for path in (ROOT / package).rglob("*.py"))
        print(f"{package:20} {total:5} of {budget} lines")
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
