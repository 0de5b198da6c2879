"""Writes the README's file tree from each file's own first sentence.

Knows which folders are shown. With --check it compares instead of writing, so the tree cannot drift.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- tree: written by `make docs` from each file's own first sentence -->\n"
END = "<!-- end of tree -->\n"
SHOWN = ("shared", "services", "scripts")
WIDTH = 100
OTHERS = {
    "docker-compose.yml": "the stack as containers",
    "deploy": "overlays, and how the containers are tested",
    "tests": "by part, as the sources are; `e2e` starts the real processes",
    "docs": "architecture, protocol, glossary, operations, decisions",
    "benchmarks": "load generator, method and results",
    "pyproject.toml": "one distribution, extras per service, every tool's settings",
    "constraints.txt": "the versions that the tests run with",
    "Makefile": "up, setup, check, test and the rest",
    ".ci": "what CI calls",
}


def tracked() -> list[Path]:
    """The files of the repository, relative to its root."""
    words = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(Path(line) for line in lines if (ROOT / line).is_file())


def summary(path: Path) -> str:
    """The first sentence of a Python file's docstring or of a script's first comment."""
    text = (ROOT / path).read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = text.splitlines()[0].lstrip("-# ") if text else ""
    sentence = re.split(r"(?<=[.;!?])\s", " ".join(text.split("\n\n")[0].split()))[0]
    return (
        sentence.rstrip(".;") if len(sentence) <= WIDTH else sentence[: WIDTH - 3].rsplit(" ", 1)[0] + " ..."
    )


def tree(files: list[Path]) -> Iterator[str]:
    """The lines of the tree: every Python file of the shown folders, other things by folder."""
    for root in SHOWN:
        seen: set[Path] = set()
        for path in files:
            if path.parts[0] != root or path.suffix != ".py" or path.name == "__init__.py":
                continue
            for folder in reversed(path.parents[:-1]):
                if folder not in seen:
                    seen.add(folder)
                    yield f"{'  ' * (len(folder.parts) - 1)}{folder.name}/".ljust(32) + _package(folder)
            yield f"{'  ' * (len(path.parts) - 1)}{path.name}".ljust(32) + summary(path)
    roots = {path.parts[0] for path in files}
    for name, text in OTHERS.items():
        if name in roots:
            yield f"{name}{'/' if (ROOT / name).is_dir() else ''}".ljust(32) + text


def _package(folder: Path) -> str:
    marker = folder / "__init__.py"
    return summary(marker) if (ROOT / marker).is_file() else ""


def with_tree(text: str, files: list[Path]) -> str:
    """The README with its tree written anew."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    lines = "\n".join(line.rstrip() for line in tree(files))
    return f"{before}{BEGIN}\n```text\n{lines}\n```\n\n{END}{after}"


def main() -> int:
    text = README.read_text()
    new = with_tree(text, tracked())
    if "--check" in sys.argv[1:]:
        if new != text:
            print("the README's tree is not the repository's: run make docs", file=sys.stderr)
            return 1
        return 0
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
