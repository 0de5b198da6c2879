# The images that a build starts from. Sourced by ci-docker.sh after lib.sh; needs $WORK, $PYTHON.
# Where no image registry answers, the base is built from Debian's packages and Redis on top of it.

BASE=python:3.11-slim-bookworm
REDIS=valkey/valkey:8-bookworm

# Whether the engine has an image or can pull it in a minute.
obtainable() { docker image inspect "$1" >/dev/null 2>&1 || timeout 60 docker pull --quiet "$1" >/dev/null 2>&1; }

# Exports PYTHON_IMAGE and REDIS_IMAGE, which docker-compose.yml reads.
images_ready() {
    if obtainable "$BASE" && obtainable "$REDIS"; then
        export PYTHON_IMAGE=$BASE REDIS_IMAGE=$REDIS
        return
    fi
    export PYTHON_IMAGE=orca-ci-base:3.11 REDIS_IMAGE=orca-ci-redis:latest
    docker image inspect "$PYTHON_IMAGE" >/dev/null 2>&1 || base_image
    say "building the Redis image"
    docker build --quiet --tag "$REDIS_IMAGE" --build-arg "PYTHON_IMAGE=$PYTHON_IMAGE" \
        --file deploy/ci/redis.Dockerfile deploy/ci >"$WORK/redis.log" 2>&1 \
        || skip "no image registry answers, and Redis cannot be built: $(tail -n 1 "$WORK/redis.log")"
}

base_image() {
    [ "$(id -u)" = 0 ] || skip "no image registry answers, and only root can build a base image"
    have debootstrap || { have apt-get && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq debootstrap \
        >"$WORK/install.log" 2>&1; } || skip "no image registry answers, and debootstrap cannot be installed"
    say "no image registry answers: building a base image, about two minutes"
    local root="$WORK/rootfs"
    rm -rf "$root"
    nice debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
        bookworm "$root" >"$WORK/debootstrap.log" 2>&1 \
        || skip "no image registry answers, and debootstrap failed: $(tail -n 1 "$WORK/debootstrap.log")"
    rm -rf "$root"/usr/lib/python3*/EXTERNALLY-MANAGED "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
    ln -sf python3 "$root/usr/bin/python"
    # This machine's certificates: builds must trust what this machine trusts.
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    tar -C "$root" -c . | docker import \
        --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1' \
        - "$PYTHON_IMAGE" >/dev/null
    rm -rf "$root"
}

# The wheel of torch that this machine's pip would take, so that the build takes the same one
# also where it lies on a local disk that a container cannot see.
wheels_ready() {
    compgen -G 'deploy/wheels/torch-*.whl' >/dev/null && return
    say "fetching the torch wheel"
    "$PYTHON" -m pip download --quiet --no-deps --dest deploy/wheels --constraint constraints.txt torch \
        || say "no torch wheel from this machine; the build asks the package index"
}
