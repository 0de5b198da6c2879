"""Each part is built from its own files and installed alone, in a clean environment.

A part that needed another part's files or packages would fail here rather than in a container.
"""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("gateway", "scheduler", "engine")
NEEDS_TORCH = {"engine"}

pytestmark = [pytest.mark.packaging, pytest.mark.slow, pytest.mark.timeout(600)]


def run(*words: str | Path) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=580, env=inherited, cwd="/"
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def build(tree: Path, into: Path) -> Path:
    """A wheel of a tree, by the backend that this environment has."""
    run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", into, tree
    )
    (wheel,) = into.glob("*.whl")
    return wheel


def part_of_the_tree(service: str, into: Path) -> Path:
    """What an image of this service copies."""
    into.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, into / name)
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "shared", into / "shared", ignore=leave)
    (into / "services").mkdir()
    shutil.copy(ROOT / "services" / "__init__.py", into / "services" / "__init__.py")
    shutil.copytree(ROOT / "services" / service, into / "services" / service, ignore=leave)
    return into


def test_the_whole_wheel_holds_every_source_and_script(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("shared", "services"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    with zipfile.ZipFile(build(tree, tmp_path / "out")) as wheel:
        inside = set(wheel.namelist())
    for root in ("shared", "services"):
        for path in (ROOT / root).rglob("*"):
            if path.suffix in (".py", ".lua", ".typed"):
                assert str(path.relative_to(ROOT)) in inside
    assert not [name for name in inside if name.endswith("Dockerfile") or name.startswith("tests")]


@pytest.mark.parametrize("service", PARTS)
def test_a_part_installs_and_imports_alone(service: str, tmp_path: Path) -> None:
    wheel = build(part_of_the_tree(service, tmp_path / "tree"), tmp_path / "out")
    with zipfile.ZipFile(wheel) as built:
        services = {name.split("/")[1] for name in built.namelist() if name.startswith("services/")}
    assert services == {"__init__.py", service}

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", f"{wheel}[{service}]")
    run(python, "-m", "pip", "check")
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for root in (f"services/{service}", "shared")
        for path in sorted((ROOT / root).rglob("*.py"))
        if path.name != "__main__.py"
    ]
    run(python, "-W", "error::ImportWarning", "-c", "\n".join(f"import {name}" for name in modules))
    found = run(python, "-c", "import importlib.util as u; print(u.find_spec('torch') is not None)")
    assert found.strip() == str(service in NEEDS_TORCH)
    assert f"orca {service}" in run(python, "-m", f"services.{service}", "--help")
