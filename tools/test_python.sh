#!/bin/sh
# test_python.sh DIR - installs the Python package by pip into a virtual environment in DIR, with PyTorch, matplotlib, transformers,
# accelerate, peft, trl and evaluate, and runs all tests of python/tests, where a warning is a failure.  PYTHON names the
# interpreter.
set -eu
dir=$1
root=$(cd "$(dirname "$0")/.." && pwd)

[ -x "$dir/bin/python" ] || "${PYTHON:-python3}" -m venv "$dir" || {
    echo "test_python: ${PYTHON:-python3} -m venv failed; on Debian: apt-get install python3-venv" >&2
    exit 1
}
"$dir/bin/pip" install --quiet --upgrade pip
# Kernels for GPUs take most of a build; without a GPU nothing here runs them.
[ -e /dev/nvidia0 ] || export CMAKE_ARGS="${CMAKE_ARGS:-} -DSTRATA_CUDA=OFF"
"$dir/bin/pip" install --quiet torch numpy matplotlib transformers accelerate peft trl evaluate "$root"
cd "$root"
unset STRATA_LIBRARY STRATA_PROGRAM
exec "$dir/bin/python" -W error -m unittest discover -s python/tests -t .
