"""The documents are true: links resolve, named files exist, generated parts are up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from services.command.settings import UpSettings

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")],
    key=str,
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:shared|services|tests|scripts|docs|deploy|benchmarks)/[\w./-]+)`")


def identifier(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=identifier)
def test_every_link_inside_the_repository_resolves(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=identifier)
def test_every_file_that_is_named_exists(document: Path) -> None:
    for target in NAMED.findall(document.read_text()):
        assert (ROOT / target).exists(), f"{document.name} names {target}"


@pytest.mark.parametrize("script", ["protocol_doc.py", "readme_tree.py"])
def test_generated_documents_are_up_to_date(script: str) -> None:
    answer = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr


def test_every_option_of_up_is_explained_to_operators() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    spoken_of_as_a_group = {"log_level", "prefill_mode", "pipeline_stages", "tensor_parallel"}
    for name in set(UpSettings.model_fields) - spoken_of_as_a_group:
        assert f"`--{name.replace('_', '-')}`" in text, name


def test_decisions_are_numbered_without_a_gap() -> None:
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_decisions_have_their_three_parts() -> None:
    for path in (ROOT / "docs" / "decisions").glob("*.md"):
        text = path.read_text()
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, f"{path.name} lacks {part}"


def test_every_make_verb_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for document in DOCUMENTS:
        for named in re.findall(r"`make ((?:[a-z-]+ ?)+)", document.read_text()):
            assert set(named.split()) <= verbs, f"{document.name}: make {named}"
