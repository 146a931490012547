#!/bin/sh
# gpu_parts.sh PART | verdict VERDICT FIGURE LIMIT | compile - one part of gpu.sh, which tells by the environment what there is: root, build,
# details (what parts print), work (temporary), program, tests, device, card, small; and of the part its text, its beginning and its end, in
# thousandths of a second.  gpu.sh ends the part with everything that it has started.
# shellcheck disable=SC2154 # what it is told
set -eu

now() { read -r up _ </proc/uptime && echo "${up%.*}${up#*.}0"; } # 12.34 is 12340; no setting of a clock changes it

# --- verdicts ---

# verdict passed|missed|FAILED|ran|"not run" FIGURE LIMIT: one line of the table and of results.jsonl; missed is a target, not the limit.
verdict()
{
    took=$(awk -v ms=$(($(now) - part_began)) 'BEGIN { printf "%.1f", ms / 1000 }')
    figure=$(printf '%s' "$2" | LC_ALL=C tr -cd ' !#-[]-~') # what a string of JSON may hold as it is
    printf '%-10s %-8s %-58s %-40s %5s s\n' "$part" "$(printf '%s' "$1" | tr ' ' -)" "$figure" "$3" "$took" >>"$work/summary"
    printf '{"part":"%s","verdict":"%s","figure":"%s","limit":"%s","seconds":%s}\n' "$part" "$1" "$figure" "$3" "$took" >>"$details/results.jsonl"
    printf -- '-- %s: %s: %s (%s)\n' "$part" "$1" "$figure" "$3"
}

# judge WHAT VALUE RELATION LIMIT [TARGET]: a number against its limit ("none": there is none) and, if that holds, a target; with --small
# numbers mean nothing, and being one is all that is asked.
judge()
{
    judged=$(awk -v v="$2" -v op="$3" -v limit="$4" -v target="${5-none}" -v small="$small" '
        function holds(of) { return of == "none" || (op == "<=" ? v + 0 <= of + 0 : v + 0 >= of + 0) }
        BEGIN {
        if (v !~ /^-?[0-9.]+([eE][-+]?[0-9]+)?$/) { print "FAILED no figure"; exit }
        printf "%s %.4g\n", small == "yes" ? "ran" : !holds(limit) ? "FAILED" : !holds(target) ? "missed" : "passed", v }')
    bounds="$3 $4"
    [ "$4" != none ] || bounds="no limit"
    verdict "${judged%% *}" "$1 ${judged#* }" "$bounds${5+, target $5}"
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

# The last line that names an error, or else the last.
last_error()
{
    { tail -n 1 "$work/err"; grep -ah -e error -e skipped "$work/err"; } 2>/dev/null | tail -n 1 | cut -c 1-90
}

# The verdict after a failure of run; what does not fit this machine (exit code 3) is not run.
failed()
{
    case $rc in
    3) verdict "not run" "${1-}$(last_error)" "$part_text" ;;
    *) verdict FAILED "${1-}ended with $rc: $(last_error)" "$part_text" ;;
    esac
}

# must FILE COMMAND...: the same; a failure is the part's verdict.
must()
{
    run "$@" && return 0
    failed
    return 1
}

# --- host memory ---

available_mib() { awk '$1 == "MemAvailable:" { print int($2 / 1024) }' "${MEMINFO:-/proc/meminfo}"; } # MEMINFO: another file, for tests

# needs_memory GIB: that much of host memory is available.  Where it is not, most of what there is is touched: some machines get more as
# they use it.  Without enough the part is not run.
needs_memory()
{
    had=0 have=$(available_mib)
    while [ "$have" -lt $(($1 * 1024)) ] && [ "$have" -gt $((had + had / 10)) ]; do
        had=$have
        timeout --foreground "$(seconds_left)" dd if=/dev/zero of=/dev/null bs=$((have * 3 / 4))M count=1 iflag=fullblock 2>/dev/null || true
        have=$(available_mib)
    done
    [ "$have" -lt $(($1 * 1024)) ] || return 0
    verdict "not run" "$have MiB of host memory are available" ">= $(($1 * 1024)) MiB"
    return 1
}

# --- what is built ---

compile()
{
    set -- -DCMAKE_BUILD_TYPE=Release -DSTRATA_CUDA=ON "-DSTRATA_CUDA_ARCHITECTURES=$architecture"
    if [ -n "$deps" ]; then
        sh "$root/tools/gpu_deps.sh" pkg-config "$deps" "$build/pkg-config"
        set -- "$@" "-DPKG_CONFIG_EXECUTABLE=$build/pkg-config" "-DCMAKE_PREFIX_PATH=$deps"
    fi
    if command -v ninja >/dev/null 2>&1; then
        set -- "$@" -G Ninja
    fi
    cmake -S "$root" -B "$build" "$@"
    cmake --build "$build" -j "$jobs" --target strata test_gpu_update test_gpu_ops test_gpu_attention test_gpu_device_ops \
        test_gpu_device_matmul test_gpu_device_llama test_gpu_device_experts test_gpu_device_attention test_gpu_device_xent \
        test_gpu_device_timed test_gpu_layers
}

smi() { nvidia-smi -i "$index" "--query-gpu=$1" --format=csv,noheader,nounits; }

# Nothing of an older pack stays, nor of one that is not whole.
unpack()
{
    rm -rf "$build/carried/bin" "$build/carried/lib"
    mkdir -p "$build/carried"
    if run "$details/build.txt" tar -xzf "$carried" -C "$build/carried"; then
        [ ! -x "$program" ] || return 0
        verdict FAILED "$(basename "$carried") has no bin/strata" "$part_text"
    else
        failed
    fi
    rm -rf "$build/carried/bin" "$build/carried/lib"
    return 1
}

build()
{
    if [ -n "$carried" ]; then
        unpack || return 0
    else
        architecture=$(smi compute_cap | tr -dc '0-9') # of this GPU alone: half the time
        export architecture
        must "$details/build.txt" sh "$0" compile || return 0
    fi
    verdict passed "$(basename "${carried:-for compute capability $architecture}")" "$part_text"
}

# --- first ---

# Where cublasLt and NCCL lie: the loader's, CUDA's, the python's on PATH.
libraries()
{
    prefix=$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null) || prefix=/usr
    for name in cublasLt nccl cudnn; do
        ldconfig -p 2>/dev/null | awk -v name="lib$name.so" 'index($1, name) == 1 { print $NF }' | xargs -r readlink -f
        for dir in /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 "$prefix"/lib*/python3*/*-packages/nvidia/*/lib; do
            for file in "$dir/lib$name".so.[0-9]*; do [ ! -e "$file" ] || readlink -f "$file"; done
        done
    done | awk '!seen[$0]++'
}

facts()
{
    date
    uname -a
    cat /etc/os-release /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory.max /proc/sys/kernel/io_uring_disabled /proc/sys/vm/overcommit_memory
    cat /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/transparent_hugepage/defrag
    lscpu
    head -n 8 /proc/meminfo
    df -h / /tmp /dev/shm
    sh -c 'ulimit -a'
    env | grep -E '^(PATH|LD_|CUDA|PYTHON|OMP)'
    for tool in python3 nvcc compute-sanitizer ncu cuobjdump gcc cmake; do command -v "$tool" || echo "no $tool"; done
    nvidia-smi
    nvidia-smi -q
}

# What the machine is, before it works; then the libraries are read once, which `info` would else wait for.
machine()
{
    { facts; libraries | xargs -r ls -lL; } >"$details/machine.txt" 2>&1 || true
    libraries | grep -v cudnn >"$work/libraries" || true
    [ "$small" = yes ] || xargs -r timeout --foreground "$(seconds_left)" cat <"$work/libraries" >/dev/null 2>&1 || true
    verdict ran "$(uname -r), $(available_mib) MiB available, $(wc -l <"$work/libraries") libraries" "$part_text"
}

info()
{
    must "$details/info.json" "$program" info --json || return 0
    run "$details/info.txt" "$program" info || true
    gpu=$(field "$details/info.json" '"gpu"' gpu | tr -d '"')
    bytes=$(gpu_field memory_bytes)
    [ -z "$bytes" ] || echo "$((bytes / 1048576))" >"$work/device_mib"
    case $gpu in
    "" | none*) verdict FAILED "${gpu:-it names no GPU}" "$part_text" ;;
    *) verdict passed "$gpu, $(device_mib) MiB, cublasLt $(field "$details/info.json" '"gpu"' cublaslt_version)" "$part_text" ;;
    esac
}

# Of the device in info.json.
gpu_field() { sed 's/.*"gpus":\[//' "$details/info.json" | tr '{' '\n' | sed -n "$((index + 2))p" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }

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

contract() { test_programs device_ops device_matmul device_llama device_experts device_xent device_timed; }
ops() { test_programs ops; }
attention() { test_programs attention device_attention; }
layers() { test_programs layers; }

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

# What driver and libraries may take beside the arena, MB: what the program itself leaves free for them.
beside_mb()
{
    [ -s "$details/info.json" ] || "$program" info --json >"$details/info.json" 2>/dev/null || true
    gpu_field memory_free_bytes >"$work/free"
    gpu_field memory_usable_bytes | paste "$work/free" - | awk 'NF == 2 { printf "%.0f\n", ($1 - $2) / 1e6 }'
}

mfu()
{
    file=$details/mfu.jsonl row='"step"'
    bench_step "$file" "$steps" --model "$model" --micro-batch "$micro" --grad-accum "$micro_accum" || return 0
    judge "of $(field "$file" "$row" ceiling_tflops | cut -c 1-6) TFLOP/s measured:" "$(field "$file" "$row" mfu)" ">=" 0.55 0.75
    reached=$(over "$(field "$file" "$row" model_tflop)" "$(field "$file" "$row" seconds)")
    if [ -n "$(datasheet)" ]; then verdict ran "of the data sheet's $(datasheet) TFLOP/s: $(over "$reached" "$(datasheet)")" "no limit"
    else verdict "not run" "no data sheet is known for this card" "no limit"; fi
    judge "device memory beside the arena, MB" "$(field "$file" "$row" device_beside_mb)" "<=" "$(beside_mb)"
}

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
        train "losses-${where%%:*}" "$few" "$loss_seq" "$loss_steps" --device "$where" || { failed "$where "; return; }
    done
    paste "$work/losses-cpu.loss" "$work/losses-cuda.loss" | tee "$details/losses.txt"
    [ "$(wc -l <"$work/losses-cuda.loss")" -eq "$loss_steps" ] || { verdict FAILED "losses are missing" "$part_text"; return; }
    judge "largest relative difference" "$(awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d } END { print most + 0 }' \
        "$details/losses.txt")" "<=" 1e-3
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

# --- second ---

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
# Judged by what the plan predicts with this machine's rates, of which the host's update decides; the cost beside all memory has a target alone.
capped()
{
    needs_memory "$capped_gib" || return 0
    must "$details/capped-rates.json" "$program" info --measure --device "$device" --model "$few" --seq-len 128 --json || return 0
    verdict ran "the host updates $(over "$(field "$details/capped-rates.json" '"machine"' update)" 1e9) G parameters a second" "no limit"
    row="\"variant\":\"$cap\""
    for kind in planned recomputed; do
        file=$details/capped.jsonl also=""
        [ "$kind" = planned ] || { file=$details/capped-recomputed.jsonl also="--set strata.activations=recomputed"; }
        # shellcheck disable=SC2086
        bench_step "$file" "$capped_steps" --model "$model" --micro-batch "$capped_micro" --grad-accum "$accum" $offload $also --device-memory "$cap" all || return 0
        took=$(over "$(field "$file" "$row" seconds)" 0.001) told=$(over "$(field "$file" "$row" predicted_ms)" 1)
        whole=$(field "$file" '"all"' predicted_ms)
        judge "$kind: $took ms by the $told predicted:" "$(over "$took" "$told")" "<=" 1.10
        cost=$(over 1 "$(field "$file" "$row" practicality)") what="$kind: by a step of all, $(over "$told" "$whole") predicted:"
        case $kind in
        planned)
            judge "$what" "$cost" "<=" none
            judge "of the matmul ceiling, state in host memory:" "$(field "$file" "$row" mfu)" ">=" none 0.68
            ;;
        recomputed) judge "$what" "$cost" "<=" none 1.05 ;;
        esac
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
    needs_memory "$capped_gib" || return 0
    # shellcheck disable=SC2086
    train trace "$model" "$seq" 3 --device "$device" --micro-batch "$capped_micro" $offload --device-memory "$cap" --trace "$work/trace.json" --ops || { failed; return; }
    gzip -c "$work/trace.json" >"$details/trace.json.gz"
    verdict ran "$(wc -c <"$work/trace.json") bytes" "$part_text"
}

# checked TOOL PROGRAM...: of compute-sanitizer's tool; what ends at the time's end shows nothing.
checked()
{
    tool=$1 bad="" late="" clean=0
    shift
    for name in "$@"; do
        run "$details/$part-$tool-$name.txt" compute-sanitizer --error-exitcode 99 --tool "$tool" "$tests/test_gpu_$name" >"$work/said" 2>&1 || true
        case $rc in
        0) clean=$((clean + 1)) ;;
        124 | 137) late="$late $name" ;;
        *) bad="$bad $name($rc)" ;;
        esac
        shares=$((shares - 1))
    done
    if [ -n "$bad" ]; then verdict FAILED "$tool:$bad" "no error"
    elif [ -n "$late" ]; then verdict "not run" "$tool: $clean programs clean, out of time:$late" "no error"
    else verdict passed "$tool: $clean programs" "no error"; fi
}

can_check()
{
    [ ! -x "$tests/test_gpu_ops" ] || ! command -v compute-sanitizer >/dev/null 2>&1 || return 0
    verdict "not run" "no test programs, or no compute-sanitizer" "no error"
    return 1
}

sanitize()
{
    can_check || return 0
    shares=6
    checked memcheck attention ops update
    checked racecheck attention ops update
}

# The library beside the program; without it, or without torch, this is not run.
module()
{
    run "$details/module.txt" env STRATA_LIBRARY="${program%/cli/strata}/libstrata.so" python3 "$root/tools/gpu_module.py" "$device" || true
    case $rc in
    0) verdict passed "$(head -n 1 "$details/module.txt" | cut -c 1-58)" "within 1e-5, equal bits" ;;
    77) verdict "not run" "$(last_error)" "within 1e-5, equal bits" ;;
    *) failed ;;
    esac
}

# --- compare ---

# compared FILE COMMAND...: by tools that are not ours; where they cannot, that is no failure, and what they said until then is kept.
compared()
{
    run "$@" || true
    lines=$(wc -l <"$1") last=$(cat "$1" "$work/err" | tail -n 1 | cut -c 1-90)
    if [ "$rc" -eq 0 ]; then verdict ran "$lines lines" "$part_text"
    elif [ "$lines" -gt 10 ]; then verdict ran "$lines lines, ended with $rc: $last" "$part_text"
    else verdict "not run" "$2 ended with $rc: $last" "$part_text"; fi
}

torch()
{
    # shellcheck disable=SC2086
    compared "$details/torch.txt" python3 "$root/tools/compare_torch.py" "$device" $toy
}

# Each kernel's first launch, by name, and of cublasLt's own; it ends with the last of them, as the sections are printed at the end.
profile()
{
    command -v ncu >/dev/null 2>&1 || { verdict "not run" "no ncu" "$part_text"; return; }
    compared "$details/ncu.txt" ncu --clock-control none --kernel-id "::regex:$kernels:1" -c 40 --kill yes --section SpeedOfLight --section Occupancy \
        --section WarpStateStats --section MemoryWorkloadAnalysis \
        "$program" bench step --device "$device" --only --steps 1 --seq-len "$seq" --model "$model" --micro-batch "$micro"
}

memcheck()
{
    can_check || return 0
    shares=6
    checked memcheck device_ops device_matmul device_llama device_experts device_attention device_xent device_timed
}

# --- in no window ---

rates()
{
    must "$details/rates.json" "$program" info --measure --device "$device" --model "$few" --seq-len 128 --json || return 0
    judge "all of strata info --measure, seconds" "$(awk -v ms=$(($(now) - part_began)) 'BEGIN { print ms / 1000 }')" "<=" 6
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
    needs_memory "$exceeds_gib" || return 0
    larger_model "$work/larger"
    mkdir -p "$build/swap"
    for tier in cpu nvme; do
        # shellcheck disable=SC2086
        set -- $offload $zero.offload_optimizer.device=$tier --model "$work/larger"
        [ "$tier" = cpu ] || set -- "$@" --nvme "$build/swap"
        if "$program" plan --device "$device" --max-steps 1 --seq-len "$seq" --micro-batch 1 --grad-accum 2 "$@" >"$work/plan" 2>"$work/err"; then
            exceeds_one "$params_m M parameters, state beyond the device's, $tier" "$details/exceeds-card.jsonl" "$@"
            return
        fi
    done
    verdict "not run" "$params_m M parameters: $(tail -n 1 "$work/err" | cut -c 1-90)" "state beyond $(device_mib) MiB"
}

# --- sizes ---

# capped: 131072 tokens a step, several times the break-even of state in host memory: a gated update has the forward alone as its window.
model=llama-1b seq=2048 micro=8 micro_accum=8 capped_micro=2 accum=32 steps=4 capped_steps=3 cap=16G
link="" link_bytes=268435456 # large copies are judged: small ones are about the cost of a call
capped_gib=20 exceeds_gib=56 # 13 and 41 GiB are pinned, and a plan uses four fifths of what is available, less 2 GiB
kernels='forward_halves|to_keys|to_queries|norm_|gated_|xent_|update|finish|nvjet|gemm'
toy="" few=mini loss_seq=256 loss_steps=20 cell_steps=4 cell_cap=64MiB exceed_cap=6G exceed_steps=3
if [ "${small:-no}" = yes ]; then
    model=nano seq=32 micro=1 micro_accum=1 capped_micro=1 accum=1 steps=1 capped_steps=1 cap=6MiB
    link="--bytes 1M --repeats 1" link_bytes=1048576
    capped_gib=1 exceeds_gib=1 toy=--small few=nano loss_seq=32 loss_steps=2 cell_steps=1 cell_cap=6MiB exceed_cap=6MiB exceed_steps=1
    echo 16 >"$work/device_mib" # a larger model is soon found
fi
zero="--set zero_optimization"
offload="$zero.stage=3 $zero.offload_optimizer.device=cpu $zero.offload_param.device=cpu"

if [ "$1" != build ] && [ "$1" != verdict ] && [ "$1" != compile ] && [ ! -x "$program" ]; then
    verdict "not run" "there is no program" "$part_text"
    exit 0
fi
"$@"
