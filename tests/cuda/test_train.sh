#!/bin/sh
# test_train.sh STRATA SOURCE_DIR [--all] - trains `nano` on the cuda device over the emulator: the digests are the same whatever the device's budget,
# the tiers and the update, with activations kept or recomputed, and the losses are the cpu device's to 1e-3.  STRATA_CUBLASLT names the
# emulator's library.  A sample, without --all: all on the device, paged, and with state streamed to it for the update.
set -eu

strata=$1
configs=$2/configs
extent=${3:-sample}
size="--seq-len 16 --max-steps 2 --set train_micro_batch_size_per_gpu=1"
[ "$extent" != --all ] || size="--seq-len 32 --max-steps 3 --set train_micro_batch_size_per_gpu=2"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir swap
i=0
while [ $i -lt 400 ]; do
    printf 'line %d of a text that a small model may learn from, %d\n' $i $((i * i % 97))
    i=$((i + 1))
done >text
"$strata" tokens text --tokenizer byte --out text.bin >/dev/null

# run NAME OPTIONS...: digests to NAME.digest, losses to NAME.loss
run()
{
    name=$1
    shift
    "$strata" train --model nano --data text.bin --config "$configs/demo_nano.json" $size --digest --quiet \
        --nvme swap --metrics "$name.jsonl" "$@" >"$name.log"
    grep _digest "$name.log" | tr -s ' ' >"$name.digest"
    [ "$(wc -l <"$name.digest")" -eq 2 ] || { echo "$name: no digests" >&2; cat "$name.log" >&2; exit 1; }
    sed -n 's/^{"step":[0-9]*,.*"loss":\([0-9.eE+-]*\).*/\1/p' "$name.jsonl" >"$name.loss"
}

same()
{
    cmp "$1.digest" "$2.digest" || { echo "$1 and $2 differ" >&2; cat "$1.digest" "$2.digest" >&2; exit 1; }
}

ample="--device-memory 512MiB --set zero_optimization.offload_optimizer.device=none --set zero_optimization.offload_param.device=none"
run cpu --device cpu $ample
run all --device cuda $ample
run small --device cuda --device-memory 6MiB
run streamed --device cuda --set strata.cache=0 --set zero_optimization.offload_optimizer.ratio=0
same all small
same all streamed
if [ "$extent" = --all ]; then
    run serial --device cuda --device-memory 6MiB --set strata.update=serial --set strata.accumulation=horizontal
    run recomputed --device cuda $ample --set strata.activations=recomputed
    run host --device cuda --set zero_optimization.offload_optimizer.device=cpu
    run half --device cuda --set zero_optimization.offload_optimizer.device=cpu --set strata.cache=0 --set zero_optimization.offload_optimizer.ratio=0.5
    same all serial
    same all recomputed
    same all host
    same all half
    leaves="--set gradient_accumulation_steps=4 --set strata.leaves=4"
    run tree --device cuda $ample $leaves
    run tree_paged --device cuda --device-memory 6MiB --set strata.accumulation=horizontal $leaves
    same tree tree_paged
fi
# A GPU without bf16 trains in fp16; with one memory for both nothing is offloaded to the host.
fp16="--set bf16.enabled=false --set fp16.enabled=true"
refused()
{
    wanted=$1
    shift
    rc=0
    "$strata" plan --model nano --seq-len 32 --micro-batch 1 --device cuda "$@" >refused 2>&1 || rc=$?
    [ $rc -eq 2 ] && grep -q "$wanted" refused || { echo "exit code $rc, and not: $wanted" >&2; cat refused >&2; exit 1; }
}
export TWIN_KIND=turing
refused 'set fp16.enabled to true'
run turing --device cuda $ample $fp16
unset TWIN_KIND
run half_precision --device cuda $ample $fp16
same turing half_precision
export TWIN_KIND=unified
refused 'offload_optimizer.device is cpu, but the GPU' --set zero_optimization.offload_optimizer.device=cpu
"$strata" info >info
grep -q "its memory is the host's: one budget for both" info || { cat info >&2; exit 1; }
run unified --device cuda $ample
unset TWIN_KIND
same all unified
"$strata" plan --model nano --seq-len 32 --micro-batch 1 --device cuda >plan
grep -q 'memory of the GPU: at most .* = device + 176 MiB ' plan || { echo "the plan says nothing of the GPU's memory" >&2; exit 1; }

# A kernel that never ends: the run does, at its deadline, and says where to look.  What the kernel may still use is never freed.
status=0
ASAN_OPTIONS=detect_leaks=0 TWIN_HANG=0 timeout -k 1 60 "$strata" train --model nano --data text.bin --config "$configs/demo_nano.json" --seq-len 32 --max-steps 3 --quiet \
    --nvme swap --device cuda --set strata.device_deadline=1 >hung.log 2>&1 || status=$?
[ "$status" -eq 4 ] && grep -q 'error: cuda:0: queue cuda-.* no progress .*nvidia-smi.*Xid' hung.log ||
    { echo "a hung GPU: exit code $status" >&2; cat hung.log >&2; exit 1; }
[ -s cpu.loss ] && [ "$(wc -l <cpu.loss)" -eq "$(wc -l <all.loss)" ]
paste cpu.loss all.loss | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-3 * $1) { print "losses differ:", $0; exit 1 } }'
[ -z "$(ls swap)" ] || { echo "files were left in the swap directory" >&2; exit 1; }
