#!/bin/sh
# gpu_parts.sh PART | verdict VERDICT FIGURE LIMIT | compile - one part of gpu.sh, which tells by the environment what there is: root, build,
# details (what parts print), work (temporary), program, tests, device, card, small; and of the part its text, its beginning and its end, in
# thousandths of a second.  gpu.sh ends the part with everything that it has started.
# shellcheck disable=SC2154 # what it is told
set -eu

now() { date +%s%3N; }

# --- verdicts ---

# verdict passed|FAILED|ran|"not run" FIGURE LIMIT: one line of the table and of results.jsonl.
verdict()
{
    # shellcheck disable=SC1003 # a backslash
    took=$(awk -v ms=$(($(now) - part_began)) 'BEGIN { printf "%.1f", ms / 1000 }') figure=$(printf '%s' "$2" | tr -d '"\\')
    printf '%-10s %-8s %-58s %-40s %5s s\n' "$part" "$(printf '%s' "$1" | tr ' ' -)" "$figure" "$3" "$took" >>"$work/summary"
    printf '{"part":"%s","verdict":"%s","figure":"%s","limit":"%s","seconds":%s}\n' "$part" "$1" "$figure" "$3" "$took" >>"$details/results.jsonl"
    printf -- '-- %s: %s: %s (%s)\n' "$part" "$1" "$figure" "$3"
}

# judge WHAT VALUE RELATION LIMIT: a number against its limit; with --small numbers mean nothing, and being one is all that is asked.
judge()
{
    judged=$(awk -v v="$2" -v op="$3" -v limit="$4" -v small="$small" 'BEGIN {
        if (v !~ /^-?[0-9.]+([eE][-+]?[0-9]+)?$/) { print "FAILED no figure"; exit }
        holds = op == "<=" ? v + 0 <= limit + 0 : v + 0 >= limit + 0
        printf "%s %.4g\n", small == "yes" ? "ran" : holds ? "passed" : "FAILED", v }')
    verdict "${judged%% *}" "$1 ${judged#* }" "$3 $4"
}

# The value of a key in the row of FILE that matches PATTERN, the last where several do.
field() { grep -- "$2" "$1" 2>/dev/null | sed -n "s|.*\"$3\":\([^,}]*\).*|\1|p" | tail -n 1; }

# Of two figures, a quotient; nothing where one is none.
over() { awk -v a="$1" -v b="$2" 'BEGIN { if (a ~ /^[0-9.]/ && b ~ /^[0-9.]/ && b + 0 > 0) print a / b }'; }

# Seconds that a command may take: most of what the part has left, divided among so many (shares) that are to come.
seconds_left() { awk -v ms=$((part_ends - $(now))) -v of="${shares:-1}" 'BEGIN { printf "%.3f", (ms > 1 ? 0.0009 * ms / of : 0.001) }'; }

# run FILE COMMAND...: standard output to FILE and, of a short one, to be seen.  Not in a process group of its own, so that the part's end is
# also the command's.
run()
{
    to=$1 rc=0
    shift
    allowed=$(seconds_left)
    timeout --foreground -k 1 "$allowed" "$@" >"$to" 2>"$work/err" || rc=$?
    case $rc in 124 | 137) echo "error: it did not end within $allowed s" >>"$work/err" ;; esac
    head -c 4000 "$to"
    head -c 4000 "$work/err" | sed 's/^/   /'
    [ ! -s "$work/err" ] || head -c 1000000 "$work/err" >"$details/$(basename "$to").err.txt"
    return "$rc"
}

last_error() { grep -h -e error -e skipped "$work/err" 2>/dev/null | tail -n 1 | cut -c 1-90; }

# must FILE COMMAND...: the same; a failure is the part's verdict.
must()
{
    run "$@" && return 0
    verdict FAILED "ended with $rc: $(last_error)" "$part_text"
    return 1
}

# --- what is built ---

compile()
{
    set -- -DCMAKE_BUILD_TYPE=Release -DSTRATA_CUDA=ON -DSTRATA_BUILD_BENCH=OFF "-DSTRATA_CUDA_ARCHITECTURES=$architecture"
    if [ -n "$deps" ]; then
        sh "$root/tools/gpu_deps.sh" pkg-config "$deps" "$build/pkg-config"
        set -- "$@" "-DPKG_CONFIG_EXECUTABLE=$build/pkg-config" "-DCMAKE_PREFIX_PATH=$deps"
    fi
    if command -v ninja >/dev/null 2>&1; then
        set -- "$@" -G Ninja
    fi
    cmake -S "$root" -B "$build" "$@"
    cmake --build "$build" -j "$jobs" --target strata test_gpu_update test_gpu_ops test_gpu_attention test_gpu_device_ops \
        test_gpu_device_matmul test_gpu_device_llama test_gpu_device_attention test_gpu_device_xent
}

smi() { nvidia-smi -i "$index" "--query-gpu=$1" --format=csv,noheader,nounits; }

build()
{
    if [ -n "$carried" ]; then
        mkdir -p "$build/carried"
        must "$details/build.txt" tar -xzf "$carried" -C "$build/carried" || return 0
    else
        architecture=$(smi compute_cap | tr -dc '0-9') # of this GPU alone: half the time
        export architecture
        must "$details/build.txt" sh "$0" compile || return 0
    fi
    verdict passed "$(basename "${carried:-for compute capability $architecture}")" "$part_text"
}

# --- A ---

info()
{
    must "$details/info.json" "$program" info --json || return 0
    run "$details/info.txt" "$program" info || true
    gpu=$(field "$details/info.json" '"gpu"' gpu | tr -d '"')
    bytes=$(sed 's/.*"gpus":\[//' "$details/info.json" | tr '{' '\n' | sed -n "$((index + 2))p" | sed -n 's/.*"memory_bytes":\([0-9]*\).*/\1/p')
    [ -z "$bytes" ] || echo "$((bytes / 1048576))" >"$work/device_mib"
    case $gpu in
    "" | none*) verdict FAILED "${gpu:-it names no GPU}" "$part_text" ;;
    *) verdict passed "$gpu, $(device_mib) MiB, cublasLt $(field "$details/info.json" '"gpu"' cublaslt_version)" "$part_text" ;;
    esac
}

# Of the device that the program sees, which may be a slice of the card.
device_mib() { cat "$work/device_mib" 2>/dev/null || echo "$card_mib"; }

# A test program; what fails is run again at once where it can say which access was wrong.
test_program()
{
    if run "$details/$1.txt" "$tests/test_gpu_$1" ${2+"$2"}; then return 0; fi
    was=$rc said=$(last_error)
    case $was in 77 | 124 | 137) return "$was" ;; esac # no GPU, or it hung
    if command -v compute-sanitizer >/dev/null 2>&1; then
        run "$details/$1.memcheck.txt" compute-sanitizer --error-exitcode 99 --tool memcheck "$tests/test_gpu_$1" ${2+"$2"} &&
            said="memcheck is clean" || said="memcheck $rc: $(grep -h 'ERROR SUMMARY' "$details/$1.memcheck.txt" | tail -n 1 | tr -d '=' | cut -c 1-40)"
    else
        said="no compute-sanitizer"
    fi
    return "$was"
}

# One verdict for each program.
test_programs()
{
    shares=$#
    for name in "$@"; do
        rc=0 said=""
        if [ ! -x "$tests/test_gpu_$name" ]; then
            verdict "not run" "no test_gpu_$name" "all pass"
        elif test_program "$name" --all; then
            verdict passed "$name: $(cat "$details/$name.txt" "$work/err" | grep -c '^\[       OK') tests" "all pass"
        else
            verdict FAILED "$name ended with $was; $said" "all pass"
        fi
        shares=$((shares > 1 ? shares - 1 : 1))
    done
}

contract() { test_programs device_ops device_matmul device_llama device_xent; }
ops() { test_programs ops; }
attention() { test_programs attention device_attention; }

link()
{
    # shellcheck disable=SC2086
    must "$details/link.jsonl" "$program" bench link --device "$device" $link --json || return 0
    for way in upload download; do
        row="\"$way\".*\"bytes\":$link_bytes,"
        judge "$way, $(field "$details/link.jsonl" "$row" gb_per_s | cut -c 1-5) GB/s, of bare copies" "$(field "$details/link.jsonl" "$row" ratio)" ">=" 0.95
    done
}

bench_step()
{
    to=$1 runs=$2
    shift 2
    must "$to" "$program" bench step --device "$device" --only --steps "$runs" --json --seq-len "$seq" "$@"
}

table()
{
    must "$details/table.txt" "$program" bench step --device "$device" --only --steps "$steps" --seq-len "$seq" --model "$model" --micro-batch "$micro" --ops || return 0
    verdict ran "$(wc -l <"$details/table.txt") lines" "$part_text"
}

# Dense bf16 TFLOP/s of the data sheet: what others' utilisation is of.
datasheet()
{
    case $card in
    *"H100 PCIe"*) echo 756 ;; *H100* | *H200*) echo 989 ;; *A100*) echo 312 ;; *) echo "" ;;
    esac
}

mfu()
{
    file=$details/mfu.jsonl row='"step"'
    bench_step "$file" "$steps" --model "$model" --micro-batch "$micro" --grad-accum "$micro_accum" || return 0
    judge "of $(field "$file" "$row" ceiling_tflops | cut -c 1-6) TFLOP/s measured:" "$(field "$file" "$row" mfu)" ">=" 0.45
    reached=$(over "$(field "$file" "$row" model_tflop)" "$(field "$file" "$row" seconds)")
    if [ -n "$(datasheet)" ]; then judge "of the data sheet's $(datasheet) TFLOP/s:" "$(over "$reached" "$(datasheet)")" ">=" 0.36
    else verdict "not run" "no data sheet is known for this card" ">= 0.36"; fi
    judge "device memory beside the arena, MB" "$(field "$file" "$row" device_beside_mb)" "<=" 455
}

# --- B ---

# train NAME MODEL SEQ STEPS OPTIONS...: losses to NAME.loss, digests to NAME.digest.
train()
{
    name=$1 train_model=$2 train_seq=$3 train_steps=$4
    shift 4
    [ -e "$work/text.bin" ] || { cat "$root"/docs/*.md >"$work/text"; "$program" tokens "$work/text" --tokenizer byte --out "$work/text.bin" >/dev/null; }
    rm -f "$work/$name.jsonl" # it is not overwritten
    run "$work/$name.out" "$program" train --model "$train_model" --data "$work/text.bin" --seq-len "$train_seq" --max-steps "$train_steps" --quiet \
        --digest --metrics "$work/$name.jsonl" --nvme "$work" "$@" >"$work/$name.log" 2>&1 || { cat "$work/$name.log"; return 1; }
    grep _digest "$work/$name.out" | tr -s ' ' >"$work/$name.digest"
    sed -n 's/^{"step":[0-9]*,.*"loss":\([0-9.eE+-]*\).*/\1/p' "$work/$name.jsonl" >"$work/$name.loss"
}

losses()
{
    for where in cpu "$device"; do
        train "losses-${where%%:*}" "$few" "$loss_seq" "$loss_steps" --device "$where" || {
            verdict FAILED "$where ended with $rc: $(last_error)" "$part_text"
            return
        }
    done
    paste "$work/losses-cpu.loss" "$work/losses-cuda.loss" | tee "$details/losses.txt"
    [ "$(wc -l <"$work/losses-cuda.loss")" -eq "$loss_steps" ] || { verdict FAILED "losses are missing" "$part_text"; return; }
    judge "largest relative difference" "$(awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d } END { print most + 0 }' \
        "$details/losses.txt")" "<=" 1e-3
}

# Cells of the matrix, options each; all of one digest.
matrix_cells()
{
    state=$zero.offload_optimizer
    for budget in 512MiB "$cell_cap"; do
        cell="--device-memory $budget $offload"
        echo "$cell --set strata.update=gated"
        [ "$small" = no ] || continue
        echo "$cell --set strata.update=serial --set strata.accumulation=horizontal"
        echo "$cell $state.ratio=0.5"
        echo "$cell $state.device=nvme --set strata.cache=0"
        echo "$cell $state.ratio=0"
        echo "$cell $state.ratio=1 --set strata.cache=0"
        echo "$cell $state.device=nvme $zero.offload_param.device=nvme"
        echo "$cell --threads 3 --set strata.activations=recomputed"
    done
}

matrix()
{
    cells=0 refused=0
    rm -f "$work/first.digest"
    matrix_cells >"$work/cells"
    while read -r options; do
        # shellcheck disable=SC2086 # options are words
        train cell "$few" 32 "$cell_steps" --device "$device" --grad-accum 2 $options </dev/null ||
            { echo "refused: $options"; refused=$((refused + 1)); continue; }
        [ -e "$work/first.digest" ] || cp "$work/cell.digest" "$work/first.digest"
        if [ "$(wc -l <"$work/cell.digest")" -ne 2 ] || ! cmp "$work/cell.digest" "$work/first.digest"; then
            verdict FAILED "cell $((cells + 1)) differs: $(echo "$options" | cut -c 1-60)" "one digest"
            return
        fi
        cells=$((cells + 1))
    done <"$work/cells"
    if [ "$cells" -gt 1 ] && [ "$refused" -eq 0 ]; then verdict passed "$cells cells, one digest" "one digest"
    else verdict FAILED "$cells cells, $refused refused: $(last_error)" "one digest"; fi
}

# As planned, where the smaller device may have to recompute what the larger keeps; then with both recomputing: the cost of the links alone.
capped()
{
    row="\"variant\":\"$cap\""
    for kind in planned recomputed; do
        file=$details/capped.jsonl also=""
        [ "$kind" = planned ] || { file=$details/capped-recomputed.jsonl also="--set strata.activations=recomputed"; }
        # shellcheck disable=SC2086
        bench_step "$file" "$capped_steps" --model "$model" --micro-batch "$capped_micro" --grad-accum "$accum" $offload $also --device-memory "$cap" all || return 0
        judge "$kind: step of $cap by step of all" "$(over 1 "$(field "$file" "$row" practicality)")" "<=" 1.10
    done
    for way in upload download; do
        judge "$way in the step by the link alone" "$(field "$file" "$row" "$way/link")" ">=" 0.95
    done
}

bound()
{
    rows=0
    for file in mfu capped capped-recomputed; do
        [ -s "$details/$file.jsonl" ] || continue
        while read -r row; do
            echo "$row" >"$work/row"
            judge "step by schedule bound, $file, $(field "$work/row" variant variant)" "$(field "$work/row" variant step/bound)" "<=" 1.10
            rows=$((rows + 1))
        done <"$details/$file.jsonl"
    done
    [ "$rows" -gt 0 ] || verdict "not run" "neither mfu nor capped has rows in $details" "<= 1.10"
}

trace()
{
    # shellcheck disable=SC2086
    train trace "$model" "$seq" 3 --device "$device" --micro-batch "$capped_micro" $offload --device-memory "$cap" --trace "$work/trace.json" --ops || {
        verdict FAILED "ended with $rc: $(last_error)" "$part_text"
        return
    }
    gzip -c "$work/trace.json" >"$details/trace.json.gz"
    verdict ran "$(wc -c <"$work/trace.json") bytes" "$part_text"
}

# --- C ---

rates()
{
    must "$details/rates.json" "$program" info --measure --device "$device" --model "$few" --seq-len 128 --json || return 0
    judge "all of strata info --measure, seconds" "$(awk -v ms=$(($(now) - part_began)) 'BEGIN { print ms / 1000 }')" "<=" 6
}

updates()
{
    if [ ! -x "$tests/test_gpu_update" ]; then
        verdict "not run" "no test_gpu_update" "$part_text"
        return
    fi
    must "$details/$part.txt" "$tests/test_gpu_update" --elems "$1" || return 0
    elems=$(sed -n 's/^\([0-9]*\) elements.*/\1/p' "$details/$part.txt" "$work/err" | tail -n 1)
    judge "random elements, no difference:" "${elems:-none}" ">=" "$1"
}
update_1e8() { updates 100000000; }
update_1e9() { updates 1000000000; }

sanitize()
{
    if [ ! -x "$tests/test_gpu_ops" ] || ! command -v compute-sanitizer >/dev/null 2>&1; then
        verdict "not run" "no test programs, or no compute-sanitizer" "no error"
        return
    fi
    shares=4 # none takes more than a quarter of what is left
    for tool in memcheck racecheck synccheck initcheck; do
        bad="" count=0
        for name in ops attention update device_ops device_matmul device_xent; do
            [ -x "$tests/test_gpu_$name" ] || continue
            run "$details/sanitize-$tool-$name.txt" compute-sanitizer --error-exitcode 99 --tool "$tool" "$tests/test_gpu_$name" >"$work/said" 2>&1 || bad="$bad $name($rc)"
            count=$((count + 1))
        done
        if [ -z "$bad" ]; then verdict passed "$tool: $count programs" "no error"; else verdict FAILED "$tool:$bad" "no error"; fi
    done
}

# config.json of a Llama-like model whose state, 12 bytes per parameter, exceeds the device by a twentieth.
larger_model()
{
    hidden=5120 ffn=13824 vocab=32000
    [ "$small" = no ] || hidden=64 ffn=256 vocab=256
    per_layer=$((4 * hidden * hidden + 3 * hidden * ffn)) outside=$((2 * vocab * hidden))
    layers=$((($(device_mib) * 1048576 * 21 / 240 - outside) / per_layer + 1))
    heads=$((hidden / 128 > 0 ? hidden / 128 : 1))
    params_m=$(((layers * per_layer + outside) / 1000000))
    mkdir -p "$1"
    printf '{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_act":"silu","vocab_size":%s,"hidden_size":%s,"intermediate_size":%s,"num_hidden_layers":%s,"num_attention_heads":%s,"num_key_value_heads":%s,"max_position_embeddings":4096,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false}\n' \
        "$vocab" "$hidden" "$ffn" "$layers" "$heads" "$heads" >"$1/config.json"
}

exceeds_one()
{
    what=$1 file=$2
    shift 2
    bench_step "$file" "$exceed_steps" --micro-batch 1 --grad-accum 2 "$@" || return 0
    judge "$what: seconds of a step" "$(field "$file" '"step"' seconds)" ">=" 0
}

# Where the state that the device cannot hold may lie: in host memory or, where the planner says that this does not do, on disk.
exceeds()
{
    # shellcheck disable=SC2086
    exceeds_one "$model in $exceed_cap" "$details/exceeds-budget.jsonl" $offload --model "$model" --device-memory "$exceed_cap"
    larger_model "$work/larger"
    mkdir -p "$build/swap"
    for tier in cpu nvme; do
        options="$offload $zero.offload_optimizer.device=$tier --model $work/larger"
        [ "$tier" = cpu ] || options="$options --nvme $build/swap"
        # shellcheck disable=SC2086
        if "$program" plan --device "$device" --max-steps 1 --seq-len "$seq" --micro-batch 1 --grad-accum 2 $options >"$work/plan" 2>"$work/err"; then
            exceeds_one "$params_m M parameters, state beyond the device's, $tier" "$details/exceeds-card.jsonl" $options
            return
        fi
    done
    verdict "not run" "$params_m M parameters: $(tail -n 1 "$work/err" | cut -c 1-90)" "state beyond $(device_mib) MiB"
}

# --- sizes ---

# capped: 131072 tokens a step, several times the break-even of state in host memory: a gated update has the forward alone as its window.
model=llama-1b seq=2048 micro=8 micro_accum=8 capped_micro=2 accum=32 steps=4 capped_steps=3 cap=16G
link="" link_bytes=268435456 # large copies are judged: small ones are about the cost of a call
few=mini loss_seq=256 loss_steps=20 cell_steps=4 cell_cap=64MiB exceed_cap=6G exceed_steps=3
if [ "${small:-no}" = yes ]; then
    model=nano seq=32 micro=1 micro_accum=1 capped_micro=1 accum=1 steps=1 capped_steps=1 cap=6MiB
    link="--bytes 1M --repeats 1" link_bytes=1048576
    few=nano loss_seq=32 loss_steps=2 cell_steps=1 cell_cap=6MiB exceed_cap=6MiB exceed_steps=1
    echo 16 >"$work/device_mib" # a larger model is soon found
fi
zero="--set zero_optimization"
offload="$zero.stage=3 $zero.offload_optimizer.device=cpu $zero.offload_param.device=cpu"

if [ "$1" != build ] && [ "$1" != verdict ] && [ "$1" != compile ] && [ ! -x "$program" ]; then
    verdict "not run" "there is no program" "$part_text"
    exit 0
fi
"$@"
