#!/bin/sh
# install_deps.sh [test] - installs what strata is built from on Debian (12, 13) and Ubuntu (24.04): only what is missing, nothing otherwise.
# "test" adds what only tests need: clang for the fuzz targets; g++ for CUDA kernels and their emulator; fio beside bench io; OpenMPI for ranks under mpirun; python3 for scripts and the Python package; on x86-64 a cross compiler and an emulator for aarch64's kernels.
set -eu

packages="gcc make cmake ninja-build pkg-config liburing-dev libaio-dev libhwloc-dev libcjson-dev libyaml-dev libdnnl-dev libxxhash-dev libpcre2-dev
libcmocka-dev bible-kjv"
if [ "${1:-}" = test ]; then
    packages="$packages clang libclang-rt-dev fio g++ libopenmpi-dev openmpi-bin python3"
    if [ "$(uname -m)" = x86_64 ]; then
        packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    fi
fi

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "install_deps: not a Debian system; CMake will say what is missing.  On Debian the packages are:" >&2
    echo "   " $packages >&2
    exit 0
fi

missing=""
for package in $packages; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "install_deps: missing:$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_deps: apt-get was not found; install these packages and try again" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "install_deps: root is needed, and sudo was not found.  As root: apt-get install$missing" >&2
        exit 1
    fi
    as_root="sudo"
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
