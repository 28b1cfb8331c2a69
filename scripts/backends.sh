#!/bin/sh
# Runs the tests of the heavy stage backends (Ray, vLLM on the CPU) in an environment of their own:
#
#   scripts/backends.sh            make the environment if need be, then test (arguments are passed to pytest). Some tests
#                                  speak with the embedded models: `make test-backends` fetches those first
#   scripts/backends.sh --setup    only make the environment
#
# The environment lies in the user's cache (3 GB) under a name made from the lock, so that every checkout of this
# machine shares it and a changed lock makes a new one; .venv-backends links to it. Linux on x86_64 only: that is what
# vLLM's CPU build exists for.
#
# The environment for development brings pip. torch is installed by it as it is configured: its CPU build is a local file or
# another index for most people. The rest comes from requirements/backends.lock through uv, which needs seconds where pip needs
# minutes.
set -eu
cd "$(dirname "$0")/.."

[ "$(uname -sm)" = "Linux x86_64" ] || {
  printf 'the heavy backends are tested on Linux on x86_64 only: vLLM has no CPU build for %s\n' "$(uname -sm)" >&2
  exit 1
}

scripts/environment.sh dev
lock=requirements/backends.lock
python=${VENV:-.venv}/bin/python
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/duologue/backends
venv=$cache/py$version-$(cksum <"$lock" | tr ' ' '-')
uv=$cache/uv-0.13.9

# Modules are compiled on first use even where the machine says otherwise: importing vLLM from source takes minutes.
unset PYTHONDONTWRITEBYTECODE

make_environment() {
  printf 'making the environment for the heavy backends (3 GB, about a minute)\n'
  pip="--quiet --quiet --no-input --disable-pip-version-check --no-compile"
  [ -x "$uv/bin/uv" ] || "$python" -m pip install $pip --target "$uv" "uv==${uv##*-}"
  "$python" -m venv --clear --without-pip "$venv"
  "$python" -m pip --python "$venv/bin/python" install $pip torch==2.13.0
  "$uv/bin/uv" pip install --quiet --no-config --no-cache --python "$venv/bin/python" \
    --no-deps --require-hashes --only-binary :all: --requirement "$lock"
  : >"$venv/.complete"
}

mkdir -p "$cache"
exec 9>"$cache/.lock" # two checkouts may come here at once
flock 9
[ -e "$venv/.complete" ] || make_environment
touch "$venv"
find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + # of locks that nobody uses any more
[ ! -e .venv-backends ] || [ -L .venv-backends ] || rm -rf .venv-backends
ln -sfn "$venv" .venv-backends
exec 9>&-
[ "${1:-}" != --setup ] || exit 0

# The package is not installed there, since every checkout uses the environment: it is found by path, in workers too.
export PYTHONPATH="$PWD/src:$PWD"
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
export HF_HUB_OFFLINE=1 VLLM_PLUGINS= VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
export DUOLOGUE_TEST_BACKENDS=1

# Instead of this shell. However it ends, nothing that it started goes on: Ray's agents outlive a cluster that was killed.
# Warnings are errors elsewhere; here they are other people's.
test_backends() {
  exec "$python" scripts/contained.py "$venv/bin/python" -m pytest -p no:cacheprovider \
    -W default -W ignore::FutureWarning -W ignore::DeprecationWarning "$@"
}

case "$*" in
"") ;;
*tests/*) test_backends "$@" ;;
*) test_backends "$@" tests/backends ;;
esac

# Ray and vLLM have nothing in common, and their tests mostly wait for processes to start: side by side.
told=$(mktemp)
test_backends tests/backends/test_vllm*.py >"$told" 2>&1 &
vllm=$!
trap 'kill "$vllm" 2>/dev/null || :; rm -f "$told"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
status=0
test_backends tests/backends/test_ray*.py &
ray=$!
trap 'kill "$vllm" "$ray" 2>/dev/null || :; rm -f "$told"' EXIT
wait "$ray" || status=$?
wait "$vllm" || status=$?
cat "$told"
exit "$status"
