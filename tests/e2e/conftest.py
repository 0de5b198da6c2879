"""The tiny model that end-to-end tests serve, and one stack that most of them share."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack
from tests.support.tiny_models import make_tiny_llama
from tests.support.tokenizers_tiny import byte_level, write_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte tokenizer and a chat template, 512 tokens of context."""
    home = tmp_path_factory.mktemp("tiny-model")
    vocab = byte_level()["model"]["vocab"]
    make_tiny_llama(home / "model", vocab_size=len(vocab), eos_token_id=vocab["<end>"])
    tokens = write_model(home / "tokens", context=512)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokens / name, home / "model" / name)
    return home / "model"


@pytest.fixture(scope="module")
def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all tests of a module that leave it as they found it."""
    with Stack(
        tmp_path_factory.mktemp("stack"), tiny_model, "--engines", "2", "--kv-slots", "4096"
    ) as running:
        yield running
