"""Counts lines against the budgets: a function, a file, a package that outgrew its own fails.

Knows paths and numbers only. Blank lines and comments count: what a reader scrolls past counts.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES = 50
FILE_LINES = 400
PACKAGE_LINES = {
    "shared": 1300,
    "services/gateway": 2000,
    "services/scheduler": 1200,
    "services/engine": 2500,
    "services/command": 800,
}


def functions_over_budget(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file that are longer than FUNCTION_LINES, with their lengths."""
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield node.name, length


def count(path: Path) -> int:
    return len(path.read_text().splitlines())


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
                for function, length in functions_over_budget(path)
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
        print(f"{package:20} {total:5} of {budget}")
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
