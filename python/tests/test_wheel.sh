#!/bin/sh
# test_wheel.sh CMAKE BUILD WORK PYTHON - the files of a wheel, put together as pyproject.toml says but without pip: the package
# finds its library and its program, and needs no variable.
set -eu
cmake=$1 build=$2 work=$3 python=$4
root=$(cd "$(dirname "$0")/../.." && pwd)

rm -rf "$work"
mkdir -p "$work"
cp -r "$root/python/strata" "$work/strata"
"$cmake" --install "$build" --component python --prefix "$work/strata" --strip >/dev/null
unset STRATA_LIBRARY STRATA_PROGRAM
cd "$work"
export PYTHONPATH="$work" PYTHONDONTWRITEBYTECODE=1
said=$("$python" -m strata --version)
has=$("$python" -c "import strata; print(strata.__version__, strata.__file__, strata.plan('nano', measure=False)['fits'])")
[ "$has" = "${said#strata } $work/strata/__init__.py True" ] || {
    echo "the package says: $has; its program: $said" >&2
    exit 1
}
bytes=$("$python" -c "import os, shutil; print(os.path.getsize(shutil.make_archive('packed', 'zip', '.', 'strata')))")
[ "$bytes" -lt 25000000 ] || {
    echo "a wheel has $bytes bytes" >&2
    exit 1
}
rm -rf "$work"
