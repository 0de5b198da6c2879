"""What keeps the parts apart: import contracts, size budgets, one place for names and payloads."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for root in ("shared", "services") for path in (ROOT / root).rglob("*.py"))


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_imports_go_one_way() -> None:
    answer = run(str(Path(sys.executable).parent / "lint-imports"))
    assert answer.returncode == 0, answer.stdout


def test_nothing_outgrew_its_budget() -> None:
    answer = run(sys.executable, "scripts/size_budget.py")
    assert answer.returncode == 0, answer.stderr


def test_redis_names_are_made_in_one_file() -> None:
    for path in SOURCES:
        if path != ROOT / "shared" / "keys.py":
            assert "orca:v" not in path.read_text(), path


def test_nothing_is_pickled_and_no_path_is_bent() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert not re.search(r"^\s*(import|from) (pickle|marshal|dill|cloudpickle)\b", text, re.MULTILINE), (
            path
        )
        assert "sys.path" not in text, path


def test_every_module_says_what_it_is() -> None:
    for path in SOURCES:
        assert path.read_text().lstrip().startswith('"""') or not path.read_text().strip(), path


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "NotImplementedError"])
def test_nothing_is_left_for_later(word: str) -> None:
    for path in SOURCES:
        assert not re.search(rf"\b{word}\b", path.read_text()), path


def test_every_script_names_the_keys_it_touches() -> None:
    scripts = sorted((ROOT / "shared" / "channels" / "lua").glob("[!_]*.lua"))
    assert scripts
    for path in scripts:
        head = path.read_text().split("\n\n")[0]
        assert "-- KEYS" in head, path
