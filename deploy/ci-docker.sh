#!/usr/bin/env bash
# Runs the compose tests on a real Docker engine: the one that answers, else one started here for
# the run and ended after it. Ends well, saying why by name, where no engine can be had.
#
#   deploy/ci-docker.sh [pytest options]
#
# CI_DOCKER_DIR   where the engine keeps its data and the logs are; a next run there is quicker
# PYTHON          the interpreter with the test suite's packages (default: .venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

export CI_DOCKER_DIR="${CI_DOCKER_DIR:-${TMPDIR:-/tmp}/orca-ci-docker-$(id -u)}"
WORK=$CI_DOCKER_DIR
PYTHON="${PYTHON:-$PWD/.venv/bin/python}"
mkdir -p "$WORK"

. deploy/ci/lib.sh
. deploy/ci/engine.sh
. deploy/ci/images.sh

[ -x "$PYTHON" ] || { say "no $PYTHON: run 'make setup' first"; exit 1; }
engine_up
compose_up_to_date
images_ready
wheels_ready
"$PYTHON" -m pytest tests/compose "$@"
