#!/bin/sh
# test_mpirun.sh STRATA WORK_DIR - two ranks that mpirun starts leave the bits of one, by MPI (where strata_mpi.so is
# built) and by tcp; and in the pseudo-terminal that mpirun gives them they print what they print into a file.  Skipped
# (77) where there is no mpirun.
set -eu
strata=$1 work=$2
command -v mpirun >/dev/null || {
    echo "no mpirun here"
    exit 77
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers of tests
rm -rf "${work:?}"
mkdir -p "$work/nvme"
cat "$0" "$0" "$0" "$0" >"$work/text"
"$strata" tokens "$work/text" --out "$work/data.bin" >"$work/tokens.out"

ranks() {
    timeout 60 mpirun --oversubscribe --bind-to none -n 2 "$strata" "$@"
}
run="train --model nano --data $work/data.bin --seq-len 32 --threads 1 --quiet --nvme $work/nvme --set strata.cache=0
    --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme"

# shellcheck disable=SC2086 # a list of options
"$strata" $run --max-steps 3 --digest --grad-accum 2 --set strata.leaves=2 >"$work/one"
grep -q weights_digest "$work/one"
for kind in tcp auto; do
    # shellcheck disable=SC2086
    ranks $run --max-steps 3 --digest --comm $kind 2>"$work/err" | tr -d '\r' >"$work/two"
    diff "$work/one" "$work/two"
done

# shellcheck disable=SC2086
TERM=xterm ranks ${run%% --quiet*} --max-steps 1 --verbose 2>&1 | tr -d '\r' >"$work/log"
grep -q "a step is 2 x 1 x 1 sequences of 32 tokens" "$work/log"
grep -q "^step 1/1 | loss .* | comm " "$work/log" # not cut at a terminal's width
test "$(grep -c "$(printf '\033')" "$work/log")" -eq 0

test "$(find "$work/nvme" -mindepth 1 | wc -l)" -eq 0
