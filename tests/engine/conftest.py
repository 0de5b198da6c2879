"""Tiny models for the engine's tests, made and loaded once."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from pathlib import Path

import pytest
import torch

from services.engine.model.load import LoadedModel, load_model
from tests.support.tiny_models import make_tiny_gpt2, make_tiny_llama


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def gpt2_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="session")
def llama(llama_dir: Path) -> LoadedModel:
    return load_model(llama_dir)


@pytest.fixture(scope="session")
def gpt2(gpt2_dir: Path) -> LoadedModel:
    return load_model(gpt2_dir)


@pytest.fixture(params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> LoadedModel:
    """Both families: grouped queries with rotary positions, and learned absolute positions."""
    loaded: LoadedModel = request.getfixturevalue(request.param)
    return loaded
