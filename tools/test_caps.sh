#!/usr/bin/env bash
# test_caps.sh [BUILD [ctest's options]] - the tests of a build (build/check) under every cap of oneDNN's instruction set that this
# processor has, and with 1, 2 and 3 workers; then a table of what failed.  Nothing in a test may depend on either.
#
# Neither is for CI: each run is the whole suite once more.  "-R '^(cli|engine)\.'" takes a part of it; CAPS and WORKERS
# ("avx2 all", "3") take some of the runs.  More workers than there are cores come from a machine that hwloc is told of; what
# compares the machine with hwloc's is left out then.
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build/check}
[ $# -eq 0 ] || shift
jobs=${JOBS:-$(nproc)}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Each cap of oneDNN 2 and 3, with the flag of /proc/cpuinfo that it needs; one that the library does not know is no cap.
known='avx2:avx2 avx2_vnni:avx_vnni avx512_core:avx512bw avx512_core_vnni:avx512_vnni avx512_core_bf16:avx512_bf16
       avx512_core_fp16:avx512_fp16 avx512_core_amx:amx_bf16 all:fpu'
caps=
for row in $known; do
    if grep -qwm1 "${row#*:}" /proc/cpuinfo; then
        caps+=" ${row%:*}"
    fi
done

# run NAME COMMAND...: the suite by that command; NAME's failures into $logs/NAME.
run() {
    local name=$1
    shift
    echo "== $name"
    "$@" ctest --test-dir "$build" -j "$jobs" -LE matrix --no-tests=error --output-on-failure "${options[@]}" >"$logs/out" 2>&1 || true
    grep -E 'tests passed|tests failed|No tests' "$logs/out" || tail -5 "$logs/out"
    sed -n 's/^[[:space:]]*[0-9]* - \([^ ]*\) (\(.*\)).*/\1 (\2)/p' "$logs/out" | grep -v '(Skipped)' >"$logs/$name.failed" || true
    if [ -s "$logs/$name.failed" ]; then
        cp "$logs/out" "$build/test_caps_$name.log"
    fi
}

options=("$@")
for cap in ${CAPS-$caps}; do
    run "$cap" env DNNL_MAX_CPU_ISA="$cap" ONEDNN_MAX_CPU_ISA="$cap"
done
for workers in ${WORKERS-1 2 3}; do
    if [ "$workers" -le "$(nproc)" ]; then
        run "workers-$workers" taskset -c "$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- -v n="$workers" \
            '{ for (i = $1; i <= ($2 == "" ? $1 : $2) && n > 0; i++) { printf "%s%s", comma, i; comma = ","; n-- } }')"
    else
        options=("$@" -E '^core\.topology$')
        # numbers that no control group's cpuset has: one that has nothing in common with the machine is ignored
        run "workers-$workers" env HWLOC_SYNTHETIC="core:$workers pu:1(indexes=$(seq -s, 1008 $((1007 + workers))))"
    fi
done

echo
status=0
for failed in "$logs"/*.failed; do
    name=$(basename "$failed" .failed)
    printf '%-18s %s\n' "$name" "$(if [ -s "$failed" ]; then paste -sd, "$failed" | sed 's/,/, /g'; else echo passed; fi)"
    if [ -s "$failed" ]; then
        status=1
    fi
done
exit $status
