#!/bin/sh
# demo.sh STRATA - what strata does, shown in a few minutes on two cores.
#
# 1. Trains `nano` on the King James text with its optimizer state on disk and half the device memory that it would take all
#    on the device, and checks that the first steps have the same bits as all on the device.
# 2. Three steps of GPT-2 (124 M parameters) on a device smaller than its weights and a host smaller than its state; the same
#    check.
# Everything it writes lies under build/demo.
set -eu

strata=${1:?usage: demo.sh STRATA}
strata=$(cd "$(dirname "$strata")" && pwd)/$(basename "$strata")
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/build/demo
all_on_device="--set zero_optimization.offload_optimizer.device=none --set zero_optimization.offload_param.device=none --device-memory 16GiB"

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# Digest lines of a run's output.
digests() { grep '_digest' "$1" | tr -s ' '; }

# same_bits NAME A B: the two runs' digests are there and equal.
same_bits()
{
    digests "$2" >"$dir/a.digest"
    digests "$3" >"$dir/b.digest"
    [ "$(wc -l <"$dir/a.digest")" -eq 2 ] || fail "$1: no digests in $2"
    cmp -s "$dir/a.digest" "$dir/b.digest" || fail "$1: digests differ: $(cat "$dir/a.digest") against $(cat "$dir/b.digest")"
    cat "$dir/a.digest"
    printf 'same bits: %s\n' "$1"
}

mkdir -p "$dir/swap"
cd "$dir"

say "the text: the King James Bible, a tenth of it held out"
"$root/tools/demo_text.sh" kjv.txt
"$strata" tokens kjv.txt --tokenizer byte --out kjv.bin --heldout 0.1 --overwrite

say "nano: how much device memory all of it would take"
nano="--model nano --data kjv.bin --config $root/configs/demo_nano.json"
# shellcheck disable=SC2086
"$strata" plan $nano $all_on_device --json >plan.json
whole=$(sed -n 's/.*"device":{"capacity":[0-9]*,"needed":\([0-9]*\),.*/\1/p' plan.json)
[ -n "$whole" ] || fail "no device.needed in plan.json"
half=$((whole / 2))
printf 'all on the device: %s bytes; this run gets %s\n' "$whole" "$half"

say "nano: the first 20 steps, state on disk and half the device memory, then all on the device"
# shellcheck disable=SC2086
"$strata" train $nano --nvme swap --device-memory $half --max-steps 20 --digest --quiet >nano_disk.log
# shellcheck disable=SC2086
"$strata" train $nano $all_on_device --max-steps 20 --digest --quiet >nano_device.log
same_bits "nano, 20 steps, state on disk against all on the device" nano_disk.log nano_device.log

say "nano: 1000 steps with state on disk and half the device memory"
# shellcheck disable=SC2086
"$strata" train $nano --nvme swap --device-memory $half --max-steps 1000 --eval-data kjv.heldout.bin --out nano-kjv --metrics nano.jsonl \
    --overwrite

say "nano: what was written, read back"
"$strata" eval --model nano-kjv --data kjv.heldout.bin --json >eval.json
bits=$(sed -n 's/.*"bits_per_byte":\([0-9.]*\).*/\1/p' eval.json)
"$strata" digest nano-kjv
awk -v bits="$bits" 'BEGIN { exit !(bits > 0 && bits < 2.4) }' || fail "held-out text takes $bits bits per byte, not under 2.4"
printf 'held-out text: %s bits per byte (bound of this demo: 2.4)\n' "$bits"

say "GPT-2, 124 M parameters, 512 tokens a step: device 200 MiB, host 1100 MiB, state on disk"
gpt2="--model gpt2 --data kjv.bin --config $root/configs/demo_gpt2.json --seq-len 512 --max-steps 3 --digest"
# shellcheck disable=SC2086
"$strata" train $gpt2 --nvme swap --device-memory 200MiB --host-memory 1100MiB | tee gpt2_disk.log
say "GPT-2 again, all on the device"
# shellcheck disable=SC2086
"$strata" train $gpt2 $all_on_device --quiet >gpt2_device.log
same_bits "GPT-2, 3 steps, state on disk against all on the device" gpt2_disk.log gpt2_device.log

[ -z "$(ls swap)" ] || fail "something was left in $dir/swap"
say "done; the trained model is in $dir/nano-kjv, metrics in $dir/nano.jsonl"
