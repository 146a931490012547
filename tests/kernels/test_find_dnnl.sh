#!/bin/sh
# test_find_dnnl.sh CMAKE FIND_DNNL - which oneDNN the build takes, and what it says of the others: headers of each kind are planted.
set -eu
cmake=$1 find_dnnl=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# expect PATTERN HEADER VERSION RUNTIME: what CMake says where HEADER states the version.
expect() {
    rm -rf "${work:?}"/*
    headers=$work/oneapi/dnnl
    mkdir -p "$headers"
    : >"$headers/dnnl_version.h"
    echo "$3" | { IFS=. read -r major minor patch
        printf '#define DNNL_VERSION_MAJOR %s\n#define DNNL_VERSION_MINOR %s\n#define DNNL_VERSION_PATCH %s\n' \
            "$major" "$minor" "$patch"; } >"$headers/$2"
    printf '#define DNNL_RUNTIME_OMP 2u\n#define DNNL_CPU_THREADING_RUNTIME DNNL_RUNTIME_%s\n' "$4" >"$headers/dnnl_config.h"
    said=$("$cmake" "-DDNNL_LIBRARY=$work/libdnnl.so" "-DDNNL_INCLUDE_DIR=$work" -P "$find_dnnl" 2>&1 | tr '\n' ' ' | tr -s ' ')
    if ! echo "$said" | grep -q -e "$1"; then
        echo "oneDNN $3 on $4 in $2: said \"$said\", not \"$1\""
        failures=$((failures + 1))
    fi
}

expect '-- oneDNN 2.6.3: ' dnnl_version.h 2.6.3 OMP
expect '-- oneDNN 3.1.1: ' dnnl_version.h 3.1.1 SEQ
expect '-- oneDNN 3.7.2: ' dnnl_version.h 3.7.2 OMP
expect '-- oneDNN 3.13.0: ' dnnl_version_numbers.h 3.13.0 OMP
expect 'strata needs 2.x or 3.x' dnnl_version.h 1.8.0 OMP
expect 'strata needs 2.x or 3.x' dnnl_version.h 4.0.0 OMP
expect 'has threads of its own' dnnl_version.h 3.13.0 TBB
expect 'does not say its version' dnnl_debug.h 3.7.2 OMP
[ "$failures" = 0 ]
