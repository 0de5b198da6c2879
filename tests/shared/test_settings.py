"""Settings: the command line wins, and nothing misspelt or out of range is passed over."""

import pytest
from pydantic import Field

from shared.errors import SettingsError
from shared.settings import RedisSettings


class Example(RedisSettings):
    kv_slots: int = Field(10, ge=2, description="room, 100 % of it")
    test_faults: bool = Field(False, description="a switch")
    max_model_len: int | None = Field(None, description="may be missing")


GIVEN = ["--redis-url", "redis://h/0", "--served-name", "m"]


def load(*words: str, **env: str) -> Example:
    return Example.load([*GIVEN, *words], prog="p", description="d", examples="  p", env=env)


def test_the_command_line_wins_over_the_environment_and_that_over_the_default() -> None:
    assert load().kv_slots == 10
    assert load(ORCA_KV_SLOTS="20").kv_slots == 20
    assert load("--kv-slots", "30", ORCA_KV_SLOTS="20").kv_slots == 30


def test_a_switch_needs_no_value() -> None:
    assert load("--test-faults").test_faults
    assert not load().test_faults
    assert load(ORCA_TEST_FAULTS="true").test_faults


@pytest.mark.parametrize(
    ("name", "hint"), [("ORCA_KV_SLOT", "ORCA_KV_SLOTS"), ("ORCA_UTTER_NONSENSE", "ORCA_UTTER_NONSENSE")]
)
def test_an_unknown_variable_stops_the_start(name: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        load(**{name: "1"})


def test_another_services_variable_is_known() -> None:
    assert load(ORCA_MAX_QUEUE="1").kv_slots == 10


def test_a_bad_value_is_told_with_its_option_and_variable() -> None:
    with pytest.raises(SettingsError, match=r"--kv-slots \(ORCA_KV_SLOTS\).*greater.*'1'"):
        load("--kv-slots", "1")


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"--redis-url \(ORCA_REDIS_URL\): is required"):
        Example.load([], prog="p", description="d", env={})


def test_an_unknown_option_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load("--kv", "3")
    assert "--kv" in capsys.readouterr().err


def test_help_shows_every_option_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        load("--help")
    out = capsys.readouterr().out
    assert "examples:" in out
    assert all(option in out for option in ("--kv-slots", "--redis-url", "(default: 10)", "100 % of it"))


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().kv_slots = 3  # type: ignore[misc]
