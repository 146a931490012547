#!/bin/sh
# test_trace_picture.sh STRATA TOOL - makes a trace of three steps with all state on disk, and has the checks beside this file
# look at pictures of it.  Exit 77 where there is no python3: the build needs none.
set -eu

strata=$1
tool=$2
checks=$(dirname "$0")/test_trace_picture.py
python3 -c 'import json, unittest' 2>/dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

i=0
while [ $i -lt 600 ]; do
    echo "in the beginning was the word"
    i=$((i + 1))
done >"$work/text"
echo '{"name":"test","matmul_flops":1e11,"upload":1e10,"download":1e10,"read":1e9,"write":1e9,"mixed":1e9,"update":1e9}' >"$work/machine.json"
"$strata" tokens "$work/text" --tokenizer byte --out "$work/text.bin"
"$strata" train --model nano --data "$work/text.bin" --seq-len 32 --micro-batch 2 --max-steps 3 --quiet \
    --machine "$work/machine.json" --nvme "$work" --trace "$work/trace.json" --device-memory 3MiB \
    --set zero_optimization.stage=3 --set strata.cache=0 --set zero_optimization.offload_optimizer.device=nvme \
    --set zero_optimization.offload_param.device=nvme
python3 "$checks" "$tool" "$work/trace.json"
