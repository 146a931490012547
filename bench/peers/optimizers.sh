#!/bin/sh
# optimizers.sh --strata BINARY [--env DIR] [options] - AdamW over parameters in memory: strata's kernels against torch's fused
# AdamW and DeepSpeedCPUAdam, same machine, same threads, same minutes.
#
# Uses the Python environment of deepspeed_zero3.sh (--env, else ${XDG_CACHE_HOME:-~/.cache}/strata/peers) and makes it from
# requirements.txt where it is missing; then hands over to optimizers.py, whose --help lists the options.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
env_dir=${XDG_CACHE_HOME:-$HOME/.cache}/strata/peers
want_env=no
for arg in "$@"; do
    case $arg in
    --env) want_env=yes ;;
    --env=*) env_dir=${arg#--env=} want_env=no ;;
    -h | --help) exec python3 "$here/optimizers.py" --help ;;
    *) [ "$want_env" = no ] || { env_dir=$arg; want_env=no; } ;;
    esac
done

# missing_packages: Debian packages that the build of DeepSpeed's cpu_adam lacks.
missing_packages()
{
    command -v c++ >/dev/null 2>&1 || echo g++
    python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
    python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null || echo python3-dev
}

missing=$(missing_packages | tr '\n' ' ')
if [ -n "$missing" ]; then
    echo "optimizers: missing: $missing" >&2
    echo "    apt-get install --no-install-recommends $missing" >&2
    exit 2
fi

if ! cmp -s "$here/requirements.txt" "$env_dir/installed.txt"; then
    echo "optimizers: installing into $env_dir" >&2
    python3 -m venv "$env_dir"
    # DeepSpeed's setup imports torch, so what it needs comes first and it is built beside it.
    grep -v -E '^(#|deepspeed)' "$here/requirements.txt" >"$env_dir/first.txt"
    "$env_dir/bin/python" -m pip install --disable-pip-version-check -q -r "$env_dir/first.txt" >&2
    DS_ACCELERATOR=cpu DS_BUILD_OPS=0 "$env_dir/bin/python" -m pip install --disable-pip-version-check -q \
        --no-build-isolation -r "$here/requirements.txt" >&2
    cp "$here/requirements.txt" "$env_dir/installed.txt"
fi

PATH=$env_dir/bin:$PATH TORCH_EXTENSIONS_DIR=$env_dir/torch_extensions DS_ACCELERATOR=cpu CUDA_VISIBLE_DEVICES='' \
    exec "$env_dir/bin/python" "$here/optimizers.py" "$@"
