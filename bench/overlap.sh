#!/bin/sh
# How much of disk, links and update hides behind a GPU's computation, gated and speculative in turns: steps of a 348 M parameter
# Llama shape of 48 layers on the paced device, with real bytes, the real disk and the real optimizer, where compute takes 0.5, 1
# and 2 times what the rest of a step takes; state in memory, then on the drive.  About twenty minutes on a quiet machine.
#
#     bench/overlap.sh STRATA DIR [STEPS [CLIP_RATE [TIERS [LOADS]]]]      DIR: on the drive; 8 GB are used, then deleted
#
# STEPS: of each schedule, by default 20.  CLIP_RATE: the share of steps whose early updates are made again, by default 0.
# Clipping is on, and no step's norm reaches it.  TIERS: of the state, by default "cpu nvme".  LOADS: by default "0.5 1 2".
set -eu
if [ $# -lt 2 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
strata=$1 dir=$2 steps=${3:-20} rate=${4:-0} tiers=${5:-cpu nvme} loads=${6:-0.5 1 2}
here=$(cd "$(dirname "$0")/.." && pwd)
model=$(mktemp -d "${TMPDIR:-/tmp}/strata-overlap-XXXXXX")
trap 'rm -rf "$model"' EXIT INT TERM
cat >"$model/config.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 768, "num_hidden_layers": 48,
 "num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 2048, "vocab_size": 4096,
 "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
 "hidden_act": "silu", "torch_dtype": "bfloat16"}
JSON
clips=
[ "$rate" = 0 ] || clips="--clip-rate $rate --set strata.clip_rate=$rate"
for tier in $tiers; do
    host=8GiB
    [ "$tier" = cpu ] || host=2GiB
    for load in $loads; do
        echo "state on $tier, compute $load times the rest, $rate of the steps clip"
        # shellcheck disable=SC2086 # words, or none
        "$strata" bench step --model "$model" --machine "$here/tests/machines/two-cores.json" --device paced --steps "$steps" \
            --load "$load" --seq-len 512 --device-memory 300MiB --host-memory $host --nvme "$dir" $clips \
            --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=cpu \
            --set zero_optimization.offload_optimizer.device=$tier --set gradient_clipping=1e30 --set strata.update=gated \
            --beside speculative
    done
done
