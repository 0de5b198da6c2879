# What the scripts of this folder share. Sourced, never run.
# Knows: how to say something and how to end as skipped. Knows nothing of images or services.

say() { printf 'compose: %s\n' "$*" >&2; }

# No engine is no fault of the project: say why by name and end well.
skip() {
    printf 'SKIPPED compose tests: %s\n' "$*"
    exit 0
}

have() { command -v "$1" >/dev/null 2>&1; }
