#!/usr/bin/env bash
# The ends of what setup.cfg allows: the newest Python and the oldest that are at hand, each with the newest jax that it
# may have. `make test` runs at one end, that of .venv; at another one this runs a few tests, and a short real run.
# Where no interpreter of an end is at hand it says so in a line, and passes.
set -euo pipefail
cd "$(dirname "$0")/.."

# Of what depends on Python or jax, what is quick: how deep C code recurses and which types there are on the wire, the
# flags of XLA, compiled steps on one device and on several, and which exceptions say that a process is gone.
readonly TESTS=(tests/runtime/items tests/ops/island tests/ops/gang tests/ops/elastic tests/programs/test_language_model.py)

# Prints the path of an interpreter of version $1 that can make environments; fails where there is none.
interpreter() {
    local root each
    root=$(pyenv root 2>/dev/null) || root=
    # The first may be a shim of pyenv, which is there for all versions and works for the chosen one alone.
    for each in "python$1" ${root:+"$root/versions/$1".*/bin/python}; do
        if "$each" -c 'import ensurepip, venv' 2>/dev/null; then
            command -v "$each"
            return
        fi
    done
    return 1
}

# $1: what to call it; then versions of Python, of which the first that is at hand is taken.
try_end() {
    local end=$1 version python venv
    shift
    for version in "$@"; do
        python=$(interpreter "$version") && break
    done
    if [ -z "$python" ]; then
        echo "versions: the $end end is skipped: of Python ${*}, none that can make environments is on the PATH or in pyenv"
        return
    fi
    if [ "$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$version" ]; then
        echo "versions: the $end end is Python $version, as in .venv, where make test runs"
        return
    fi
    venv=.venv-$version
    if [ "$venv/installed" -ot setup.cfg ]; then
        "$python" -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[pytest]'
        touch "$venv/installed"
    fi
    "$venv/bin/python" -c 'import jax, sys; print(f"versions: the '"$end"' end is Python {sys.version.split()[0]} with jax {jax.__version__}")'
    TESTS_EFFORT=5 "$venv/bin/python" -m pytest -n 2 --dist worksteal -m "not process and not soak" "${TESTS[@]}"
    "$venv/bin/python" tests/short_run.py 60000 0.9
}

try_end newest 3.13 3.12
try_end oldest 3.11
