#!/usr/bin/env bash
# fuzz_short.sh [--all] [SECONDS [JOBS]] - libFuzzer on every target of tests/fuzz for SECONDS each (10), JOBS at a time (all cores),
# under asan and ubsan; with --all for SECONDS over all targets together, and with one seed, so that two runs over the same code try
# the same inputs.  New inputs and whatever breaks a target are kept in build/fuzz/new.  Without clang and its fuzzer
# library nothing runs, and the exit code is 0: every build replays the corpus anyway.
set -euo pipefail
cd "$(dirname "$0")/.."

together=no
seed=0 # another one each time
if [ "${1:-}" = --all ]; then
    together=yes
    seed=1
    shift
fi
seconds=${1:-10}
jobs=${2:-$(nproc)}
build=build/fuzz

probe='int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return 0; }'
if ! echo "$probe" | clang -x c -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then
    echo "fuzz: clang with libFuzzer is not installed, so no target runs"
    exit 0
fi

targets=$(basename -s .c tests/fuzz/fuzz_*.c)
if [ $together = yes ]; then
    count=$(echo "$targets" | wc -l)
    seconds=$((seconds / ((count + jobs - 1) / jobs)))
    [ "$seconds" -gt 0 ] || seconds=1
fi
mkdir -p "$build"
if ! { CC=clang cmake --preset asan -B "$build" -DSTRATA_FUZZ=ON -DSTRATA_CUDA=OFF -DSTRATA_SANITIZE=address,undefined,fuzzer-no-link &&
    cmake --build "$build" -j "$jobs" --target $targets; } >"$build/build.log" 2>&1; then
    cat "$build/build.log"
    exit 1
fi

run_one() {
    local target=$1 seconds=$2 build=$3 seed=$4
    local fresh=$build/new/$target log=$build/$target.log

    mkdir -p "$fresh"
    if "$build/tests/fuzz/$target" -seed="$seed" -max_total_time="$seconds" -timeout=10 -artifact_prefix="$fresh/" "$fresh" \
        "tests/fuzz/corpus/${target#fuzz_}" >"$log" 2>&1; then
        echo "$target: $(tail -1 "$log")"
    else
        tail -60 "$log"
        echo "$target: FAILED, the input lies in $fresh; it begins, in base64:"
        cat "$fresh"/{crash,timeout,oom,leak}-* 2>/dev/null | head -c 8192 | base64
        return 1
    fi
}
export -f run_one
printf '%s\n' $targets | xargs -P "$jobs" -I{} bash -c 'run_one "$@"' run_one {} "$seconds" "$build" "$seed"
