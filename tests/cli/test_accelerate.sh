#!/bin/sh
# test_accelerate.sh STRATA WORK_DIR - what Accelerate's own launcher hands on of its config files is what strata takes of the
# files themselves: DeepSpeed's file, its keys, FSDP 1 and 2, CPUs.  Skipped (77) where there is no accelerate.
set -eu
strata=$1 work=$2
command -v accelerate >/dev/null || {
    echo "no accelerate here"
    exit 77
}
rm -rf "${work:?}"
mkdir -p "$work"
cat "$0" "$0" "$0" "$0" >"$work/text"
"$strata" tokens "$work/text" --out "$work/data.bin" >"$work/tokens.out"
golden=$(dirname "$0")/../golden/recipes/fsdp

cat >"$work/ds.json" <<END
{"train_batch_size": 2, "gradient_clipping": 0.5, "fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}
END
cat >"$work/ds_file.yaml" <<END
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {deepspeed_config_file: $work/ds.json, zero3_init_flag: false}
num_machines: 1
num_processes: 2
END
cat >"$work/ds_keys.yaml" <<END
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 2, gradient_clipping: 0.5, offload_optimizer_device: cpu, offload_param_device: none}
mixed_precision: fp16
num_machines: 1
num_processes: 2
END
cat >"$work/cpu.yaml" <<END
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: true
END
sed 's/num_processes: 4/num_processes: 2/; s/dp_shard_size: 4/dp_shard_size: 2/' "$golden"/fsdp2.yaml >"$work/fsdp2.yaml"
cp "$golden"/fsdp1.yaml "$work"

run="--model nano --data $work/data.bin --seq-len 32 --threads 1 --quiet --max-steps 3 --digest"
launch() { # FILE WORDS: standard output of the ranks
    file=$1
    shift
    timeout 100 accelerate launch --config_file "$file" --no_python "$strata" "$@" 2>"$work/err"
}
same() { # NAME OPTIONS: of one rank
    name=$1
    shift
    # shellcheck disable=SC2086 # a list of options
    "$strata" train $run --config "$work/$name.yaml" "$@" 2>"$work/err" >"$work/$name.one"
    grep -q weights_digest "$work/$name.one"
    # shellcheck disable=SC2086
    launch "$work/$name.yaml" train $run | grep _digest >"$work/$name.two" # DeepSpeed's notices are there, too
    diff "$work/$name.one" "$work/$name.two"
}
# What one rank does of two ranks' step.
for name in ds_file ds_keys fsdp1 fsdp2; do
    same $name --grad-accum 2 --set strata.leaves=2
done
diff "$work/fsdp1.two" "$work/fsdp2.two"
same cpu # one process, without mpirun

has() { # NAME PATTERN...: what check prints under the launcher, once
    name=$1
    shift
    launch "$work/$name.yaml" check --all >"$work/$name.check"
    for pattern in "$@"; do
        test "$(grep -c "$pattern" "$work/$name.check")" -eq 1
    done
}
has ds_file '^train_batch_size *2 *file' '^fp16.enabled *true *file' '^zero_optimization.stage *2 *file'
has fsdp1 '^zero_optimization.stage *3 *environment' '^strata.activations *recomputed *environment' \
    '^zero_optimization.offload_param.device *cpu *environment'
has fsdp2 '^zero_optimization.stage *2 *environment' '^bf16.enabled *true *environment'

# As many ranks as the file's sizes ask for, or none.
if timeout 100 accelerate launch --config_file "$golden"/fsdp2.yaml --num_processes 2 --no_python "$strata" check >"$work/refused" 2>&1; then
    exit 1
fi
grep -q "PARALLELISM_CONFIG_DP_SHARD_SIZE: .* is 4, and WORLD_SIZE is 2: make them equal" "$work/refused"
