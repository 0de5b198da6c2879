"""Fetches a model: fills a directory with it, the one-shot step before containers start, or prints
the directory where it lies."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from services.engine.model.demo import resolve_model, say
from shared.errors import OrcaError, SettingsError


def main(argv: list[str] | None = None) -> int:
    """Fill a directory with a model, or find that it has one; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m services.engine.model",
        description="Fetch a model; put its files into a directory, or print the one that has them.",
        epilog="examples:\n  python -m services.engine.model --model demo --into /models/demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="demo", help="'demo', a directory or a hub id (default: demo)")
    parser.add_argument(
        "--into", type=Path, help="a directory to fill; without it the model stays where it is"
    )
    options = parser.parse_args(argv)
    try:
        if options.into is None:
            sys.stdout.write(f"{resolve_model(options.model)[0].absolute()}\n")
        else:
            fill(options.model, options.into)
    except OrcaError as error:
        say(f"orca model: {error}")
        return 1
    return 0


def fill(model: str, into: Path) -> None:
    """Copy a model's files; one whose `config.json` is there is taken as complete.

    Raises:
        SettingsError: the model cannot be had, or the directory cannot be written.
    """
    if (into / "config.json").is_file():
        say(f"{into} already holds a model")
        return
    source, _ = resolve_model(model)
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".filling") as work:
            # config.json last: whoever finds it finds a whole model.
            files = sorted(
                (path for path in source.iterdir() if path.is_file()), key=lambda p: p.name == "config.json"
            )
            for path in files:
                shutil.copyfile(path, Path(work) / path.name)
                (Path(work) / path.name).rename(into / path.name)
    except OSError as error:
        raise SettingsError(f"{into} cannot be filled: {error}") from error
    say(f"{model} is in {into}")


if __name__ == "__main__":
    sys.exit(main())
