"""The README's calls work as printed; only the address and the model's name are this test's."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import Stack

ROOT = Path(__file__).resolve().parent.parent.parent
PRINTED_URL = "http://127.0.0.1:8000"
PRINTED_MODEL = "smollm2-135m-instruct"


def block(language: str, stack: Stack) -> str:
    """The README's one code block of a language, aimed at the stack."""
    (code,) = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert PRINTED_URL in code
    assert PRINTED_MODEL in code
    return str(code).replace(PRINTED_URL, stack.url).replace(PRINTED_MODEL, "tiny")


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_call_streams_an_answer(stack: Stack) -> None:
    lines = [line for line in run("sh", "-c", block("sh", stack)).splitlines() if line]
    assert lines[0].startswith(("data: {", "id: "))
    assert lines[-1] == "data: [DONE]"


def test_the_openai_call_prints_an_answer(stack: Stack) -> None:
    assert run(sys.executable, "-c", block("python", stack)).strip()


def test_the_terminal_chat_streams_an_answer(stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "chat", "--url", stack.url, "--default-max-tokens", "4"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "talking to tiny" in done.stderr
