#!/usr/bin/env bash
# The wheel in an empty environment of each Python at hand, of those that setup.cfg names: it is installed with the newest
# jax that this Python may have, and trains. With the newest Python a few tests run on it, too; `make test` is of .venv.
# A Python of which no interpreter is on the PATH or in pyenv is named in the last line, and costs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # Else every process of a run compiles what it imports.

# Of what depends on Python or jax, what is quick: how deep C code recurses and which types there are on the wire, the
# flags of XLA, compiled steps on one device and on several, and which exceptions say that a process is gone.
readonly TESTS=(tests/runtime/items tests/ops/island tests/ops/gang tests/programs/wings/elastic tests/programs/test_language_model.py)
readonly INSTALL_SECONDS_MAX=1200 TRAIN_SECONDS_MAX=600

# Prints the path of an interpreter of version $1 that can make environments; fails where there is none.
interpreter() {
    local root each
    root=$(pyenv root 2>/dev/null) || root=
    # The first may be a shim of pyenv, which is there for all versions and works for the chosen one alone.
    for each in "python$1" ${root:+"$root/versions/$1".*/bin/python} .venv/bin/python; do
        if "$each" -c "import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            command -v "$each"
            return
        fi
    done
    return 1
}

pip_of() {
    timeout "$INSTALL_SECONDS_MAX" "$1/bin/python" -m pip --quiet --disable-pip-version-check "${@:2}"
}

# Prints the path of a wheel of this tree.
wheel() {
    if [ .venv-build/installed -ot pyproject.toml ]; then
        .venv/bin/python -m venv --clear .venv-build
        pip_of .venv-build install "$(sed -n 's/^requires = \["\(.*\)"\]$/\1/p' pyproject.toml)" wheel
        touch .venv-build/installed
    fi
    rm -rf build dist/wheel  # A module that an earlier build left would be packed, too.
    pip_of .venv-build wheel --no-build-isolation --no-deps --wheel-dir dist/wheel .
    echo dist/wheel/*.whl
}

# Installs the wheel $2 with the extras $3 into the environment of Python $1, which is empty unless setup.cfg is older.
install() {
    local venv=.venv-$1
    if [ "$venv/installed" -ot setup.cfg ]; then
        "$(interpreter "$1")" -m venv --clear "$venv"
        pip_of "$venv" install "$2$3"
        touch "$venv/installed"
    else
        pip_of "$venv" install --no-deps --force-reinstall "$2"
    fi
}

at_hand=() missing=()
for version in $(sed -n 's/^ *Programming Language :: Python :: \(3\.[0-9]*\)$/\1/p' setup.cfg); do
    if interpreter "$version" >/dev/null; then at_hand+=("$version"); else missing+=("$version"); fi
done
if [ ${#at_hand[@]} -eq 0 ]; then
    echo "versions: none of Python ${missing[*]} that can make environments is on the PATH or in pyenv"
    exit 1
fi
newest=${at_hand[-1]} package=$(wheel) jobs=()
for version in "${at_hand[@]}"; do
    extras=
    if [ "$version" = "$newest" ]; then extras='[pytest]'; fi
    install "$version" "$package" "$extras" &
    jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job"; done

tried=()
for version in "${at_hand[@]}"; do
    tried+=("$(.venv-"$version"/bin/python -c 'import jax, platform; print(platform.python_version(), "with jax", jax.__version__)')")
    echo "versions: the wheel, Python ${tried[-1]}"
    timeout "$TRAIN_SECONDS_MAX" ".venv-$version/bin/python" tests/short_run.py 100000 0.9
done
TESTS_EFFORT=5 ".venv-$newest/bin/python" -m pytest -n 2 --dist worksteal -m "not process and not soak" "${TESTS[@]}"
printf -v text '%s, ' "${tried[@]}"
echo "versions: tried Python ${text%, }${missing[*]:+; not at hand: ${missing[*]}}"
