#!/bin/sh
# test_picture.sh STRATA - makes a trace of three steps with all state on disk, and has the checks beside this file look at
# pictures of it and of plans.  Exit 77 where there is no python3: the build needs none.
set -eu

strata=$1
checks=$(dirname "$0")/test_picture.py
python3 -c 'import json, unittest' 2>/dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

i=0
while [ $i -lt 600 ]; do
    echo "in the beginning was the word"
    i=$((i + 1))
done >"$work/text"
echo '{"name":"<two> & \"cores\"","device_bytes":3e6,"host_bytes":1e9,"nvme_bytes":1e9,"workers":2,"device_is_host":false,"matmul_flops":1e11,"upload":1e10,"download":1e10,"read":1e9,"write":1e9,"mixed":1e9,"update":1e9}' >"$work/machine.json"
"$strata" tokens "$work/text" --tokenizer byte --out "$work/text.bin"
"$strata" train --model nano --data "$work/text.bin" --seq-len 32 --micro-batch 2 --max-steps 3 --quiet \
    --machine "$work/machine.json" --nvme "$work" --trace "$work/trace.json" --device-memory 3MiB \
    --set zero_optimization.stage=3 --set strata.cache=0 --set zero_optimization.offload_optimizer.device=nvme \
    --set zero_optimization.offload_param.device=nvme
python3 "$checks" "$strata" "$work"
