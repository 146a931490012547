# environment.sh - sourced by the scripts beside it: the Python environment that the peers run in.
# The script sets peer to the name of its driver, then calls peer_parse, peer_environment and peer_run in this order.

peer_here=$(cd "$(dirname "$0")" && pwd)
peer_env=${XDG_CACHE_HOME:-$HOME/.cache}/strata/peers

# peer_parse ARGS...: finds --env DIR; --help is the driver's.
peer_parse()
{
    want_env=no
    for arg in "$@"; do
        case $arg in
        --env) want_env=yes ;;
        --env=*) peer_env=${arg#--env=} want_env=no ;;
        -h | --help) exec python3 "$peer_here/$peer.py" --help ;;
        *) [ "$want_env" = no ] || { peer_env=$arg; want_env=no; } ;;
        esac
    done
}

# missing_packages [HEADER:PACKAGE]...: Debian packages that DeepSpeed's just-in-time build lacks.
missing_packages()
{
    if ! command -v c++ >/dev/null 2>&1; then
        echo g++
    else
        for pair in "$@"; do
            echo "#include <${pair%%:*}>" | c++ -E -x c++ - >/dev/null 2>&1 || echo "${pair#*:}"
        done
    fi
    python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
    python3 -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null || echo python3-dev
}

# peer_environment [HEADER:PACKAGE]...: names what is missing and ends with 2, or installs what requirements.txt asks for.
peer_environment()
{
    missing=$(missing_packages "$@" | tr '\n' ' ')
    if [ -n "$missing" ]; then
        echo "$peer: missing: $missing" >&2
        echo "    apt-get install --no-install-recommends $missing" >&2
        exit 2
    fi
    if cmp -s "$peer_here/requirements.txt" "$peer_env/installed.txt"; then
        return
    fi
    echo "$peer: installing into $peer_env" >&2
    python3 -m venv "$peer_env"
    # DeepSpeed's setup imports torch, so what it needs comes first and it is built beside it.
    grep -v -E '^(#|deepspeed)' "$peer_here/requirements.txt" >"$peer_env/first.txt"
    "$peer_env/bin/python" -m pip install --disable-pip-version-check -q -r "$peer_env/first.txt" >&2
    DS_ACCELERATOR=cpu DS_BUILD_OPS=0 "$peer_env/bin/python" -m pip install --disable-pip-version-check -q \
        --no-build-isolation -r "$peer_here/requirements.txt" >&2
    cp "$peer_here/requirements.txt" "$peer_env/installed.txt"
}

# peer_run ARGS...: hands over to the driver.
peer_run()
{
    PATH=$peer_env/bin:$PATH TORCH_EXTENSIONS_DIR=$peer_env/torch_extensions exec "$peer_env/bin/python" "$peer_here/$peer.py" "$@"
}
