"""The compose files say something valid; no engine is needed to know."""

import json
from typing import Any

import pytest

from tests.support.containers import compose, missing_plugin

OVERLAYS = ("api-keys", "gpu", "local-model")


@pytest.fixture(autouse=True)
def _plugin() -> None:
    if reason := missing_plugin():
        pytest.skip(reason)


def resolved(*files: str, **env: str) -> dict[str, Any]:
    """The project as compose reads it."""
    names = [word for name in ("docker-compose.yml", *files) for word in ("-f", name)]
    done = compose(*names, "config", "--format", "json", env=env)
    assert done.returncode == 0, done.stderr
    project: dict[str, Any] = json.loads(done.stdout)
    return project


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_fits_the_compose_file(overlay: str) -> None:
    done = compose(
        "-f",
        "docker-compose.yml",
        "-f",
        f"deploy/compose/{overlay}.yml",
        "config",
        "-q",
        env={"MODEL_DIR": "/model", "API_KEY_FILE": "/keys"},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_gateway_alone_is_published_and_on_the_loopback_address() -> None:
    services = resolved()["services"]
    published = {name: service["ports"] for name, service in services.items() if service.get("ports")}
    assert list(published) == ["gateway"]
    assert [(port["host_ip"], port["published"]) for port in published["gateway"]] == [("127.0.0.1", "8000")]


def test_a_service_gets_longer_to_stop_than_it_takes_to_drain() -> None:
    services = resolved()["services"]
    assert {
        name: services[name]["stop_grace_period"] for name in ("gateway", "scheduler", "engine")
    } == dict.fromkeys(("gateway", "scheduler", "engine"), "45s")


def test_the_pool_is_durable_and_never_evicts() -> None:
    redis = resolved()["services"]["redis"]
    words = redis["command"]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert [(volume["type"], volume["target"]) for volume in redis["volumes"]] == [("volume", "/data")]


def test_gateway_and_engine_only_read_the_model_that_the_model_service_writes() -> None:
    services = resolved()["services"]
    mounts = {name: services[name]["volumes"][0] for name in ("model", "gateway", "engine")}
    assert len({mount["source"] for mount in mounts.values()}) == 1
    assert {name: mount.get("read_only", False) for name, mount in mounts.items()} == {
        "model": False,
        "gateway": True,
        "engine": True,
    }


def test_another_model_is_served_under_its_own_name_and_from_its_own_folder() -> None:
    services = resolved(ORCA_MODEL="owner/model")["services"]
    settings = services["gateway"]["environment"]
    assert settings["ORCA_SERVED_NAME"] == "owner/model"
    assert settings["ORCA_MODEL"] == "/models/owner/model"
    assert services["model"]["command"][-1] == "/models/owner/model"
    assert services["engine"]["environment"]["ORCA_SERVED_NAME"] == "owner/model"


def test_a_local_model_needs_its_directory_named() -> None:
    done = compose("-f", "docker-compose.yml", "-f", "deploy/compose/local-model.yml", "config", "-q")
    assert done.returncode != 0
    assert "set MODEL_DIR to a Hugging Face model directory" in done.stderr
