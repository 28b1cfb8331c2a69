#!/bin/sh
# Writes requirements/*.lock from pyproject.toml and requirements/build.in: every version pinned, every wheel
# hashed, for CPython 3.11 to 3.13 on Linux (x86_64, aarch64) and macOS (arm64). Only wheels are locked, so
# installing never compiles anything. The first three agree: dev is resolved first and constrains the others.
#
#   scripts/lock.sh             keep the locked versions, add what pyproject.toml newly asks for
#   scripts/lock.sh --upgrade   take the newest versions that pyproject.toml allows
set -eu
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools/venv"
"$tools/venv/bin/python" -m pip install --quiet --disable-pip-version-check 'uv==0.13.9'

compile() {
  target=$1
  shift
  "$tools/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --only-binary :all: \
    --generate-hashes --no-emit-index-url --no-annotate --no-header --no-config \
    --output-file "requirements/$target.lock" pyproject.toml requirements/build.in "$@" >/dev/null
}

compile dev --extra dev "$@"
compile run --constraint requirements/dev.lock
compile mic --extra mic --constraint requirements/dev.lock
# On its own: vLLM pins what the others need not follow.
compile backends --extra dev requirements/backends.in --override requirements/backends-without.txt
