"""The settings of `orca up`: what is passed on, and names made from models."""

from pathlib import Path

import pytest

from services.command.settings import UpSettings, arguments, is_loopback, served_name_of, threads_of


@pytest.mark.parametrize(
    ("model", "served_name", "expected"),
    [
        ("demo", "", "smollm2-135m-instruct"),
        ("demo", "mine", "mine"),
        ("Someone/Some Model_7B", "", "some-model_7b"),
        ("Someone/???", "", "model"),
    ],
)
def test_the_served_name_comes_from_the_model_unless_given(
    model: str, served_name: str, expected: str
) -> None:
    assert served_name_of(UpSettings(model=model, served_name=served_name)) == expected


def test_a_directory_is_served_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "My-Model").mkdir()
    assert served_name_of(UpSettings(model=str(tmp_path / "My-Model"))) == "my-model"


def test_unset_options_are_left_to_the_service() -> None:
    words = list(arguments(UpSettings(), "engine"))
    assert "--kv-slots" not in words
    assert "--test-faults" not in words


def test_set_options_are_passed_on_as_they_are() -> None:
    words = list(arguments(UpSettings(kv_slots=77, test_faults=True), "engine"))
    assert words[words.index("--kv-slots") + 1] == "77"
    assert "--test-faults" in words


def test_engines_share_the_processors_but_each_has_one_thread() -> None:
    assert threads_of(UpSettings(engines=64)) >= 1
    assert threads_of(UpSettings(engines=2, threads=5)) == 5


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.5", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("example", False)],
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
