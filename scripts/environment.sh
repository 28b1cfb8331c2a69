#!/bin/sh
# Makes (or brings up to date) the virtual environment in $VENV, default .venv:
#
#   scripts/environment.sh run    what the program needs
#   scripts/environment.sh dev    that, and what tests and checks need
#
# Needs a Python 3.11 to 3.13 with venv, nothing else. Installs only hashed wheels from requirements/*.lock, then
# the package itself in place. A stamp per lock makes a second call return at once, also without a network.
# Where pip fetches from is pip's own configuration. PYTHON=... chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."

kind=$1
venv=${VENV:-.venv}
lock=requirements/$kind.lock
stamps=$venv/.stamps

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

usable() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1
}

find_python() {
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if usable "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no usable Python: Duologue needs Python 3.11, 3.12 or 3.13 (tried: ${PYTHON:-python3 python3.13 python3.12 python3.11})." \
    "Install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

sum_of() {
  cksum <"$1" | tr ' ' '-'
}

done_already() {
  [ -e "$stamps/$1" ]
}

stamp() {
  mkdir -p "$stamps"
  rm -f "$stamps/${1%%-*}"-*
  : >"$stamps/$1"
}

install() {
  "$venv/bin/python" -m pip install --quiet --quiet --no-input --disable-pip-version-check "$@"
}

if ! usable "$venv/bin/python"; then
  python=$(find_python)
  printf 'making %s with %s\n' "$venv" "$("$python" --version)"
  "$python" -m venv --clear "$venv" ||
    fail "$python cannot make a virtual environment." \
      "On Debian and Ubuntu install python3-venv; elsewhere name another Python: make PYTHON=... ..."
fi

packages=$kind-$(sum_of "$lock")
if ! done_already "$packages"; then
  printf 'installing %s (about a minute)\n' "$lock"
  install --require-hashes --only-binary=:all: --requirement "$lock" ||
    fail "the packages in $lock could not be installed." \
      "If the network is the reason, set pip's index or proxy (PIP_INDEX_URL, PIP_PROXY) and type the same again."
  stamp "$packages"
fi

# The build tools are in the lock, so building in the environment itself resolves and fetches nothing.
package=package-$(sum_of pyproject.toml)
if ! done_already "$package"; then
  install --no-deps --no-build-isolation --editable .
  stamp "$package"
fi
