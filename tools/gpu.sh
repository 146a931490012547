#!/bin/sh
# gpu.sh [options]      - builds strata on a machine with a GPU and shows there what only a GPU can show, part by part, each against its limit.
# gpu.sh --collect DIR  - copies into DIR what --deps takes: run it where the -dev packages are installed.
#
#   --only PART,...  these parts alone (--list names them)        --quick  the tests alone, no speed
#   --out DIR        figures as JSON lines, and what every part printed; default build/gpu/results
#   --build DIR      default build/gpu; what is built there already is kept
#   --deps DIR       stands for the -dev packages (tools/gpu_deps.sh); neither root nor pkg-config is needed then
#   --program FILE   measure this strata and build nothing: parts that need test programs are not run
#   --small          toy sizes: shows that the script works, not what the GPU does
#   --device cuda:N  default cuda
#   --minutes N      the machine goes back after so many: what does not begin in time is not run, what runs then is ended
#
# Parts run in the order of their weight; one that takes longer than its own limit is ended.  Ends with 0 when all that ran passed, 1 when
# something failed, 77 where there is no GPU or no nvcc.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps="" build=$root/build/gpu out="" quick=no only="" program="" small=no device=cuda minutes=1000000
jobs=$(nproc)

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
say() { printf '\n== %s\n' "$*"; }
skip() { printf 'gpu: skipped: %s\n' "$*"; exit 77; }
fail() { printf 'gpu: %s\n' "$*" >&2; exit 1; }

# Name, seconds it may take, and what issue 8 wants shown.
list_parts()
{
    cat <<LIST
contract    300  every device-table contract test passes on cuda
ops         300  ops agree with the cpu device within stated tolerances
update      420  optimizer kernels equal scalar bit for bit over 1e9 random elements
losses      120  twenty steps' losses are the cpu device's within 1e-3
matrix      240  budgets, tiers, policies and shares of the update never change digests
link        120  copies through the table at 0.95 of bare pinned ones, or more
mfu         180  a resident model at sequence 2048 uses 45 % of the matmul ceiling, or more
capped      360  a step with 16 GiB of the device takes 1.10 of one with all of it, at most
bound        30  and 1.10 of its schedule's bound, at most (from the runs of mfu and capped)
exceeds     420  models train whose state exceeds the device's budget, and its whole memory
rates        60  rates at start are there in a few seconds
sanitize    600  compute-sanitizer is clean on the small tests: memcheck, racecheck, synccheck, initcheck
LIST
}

while [ $# -gt 0 ]; do
    case $1 in
    --deps | --build | --collect | --out | --only | --program | --device | --minutes)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case $1 in
        --deps) deps=$2 ;; --build) build=$2 ;; --collect) exec sh "$root/tools/gpu_deps.sh" collect "$2" ;; --out) out=$2 ;;
        --only) only="$only,$2" ;; --program) program=$2 ;; --device) device=$2 ;; --minutes) minutes=$2 ;;
        esac
        shift 2
        ;;
    --quick) quick=yes; shift ;;
    --small) small=yes; shift ;;
    --list) list_parts; exit 0 ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 1 ;;
    esac
done
for part in $(printf '%s' "$only" | tr ',' ' '); do
    list_parts | grep -q "^$part " || fail "--only $part: there is no such part; --list names them"
done

# --- what the machine has ---

if [ -z "$program" ] && ! command -v nvcc >/dev/null 2>&1 && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    skip "nvcc was not found (PATH, CUDA_HOME, /usr/local/cuda): the GPU's tests cannot be built"
fi
if ! command -v nvidia-smi >/dev/null 2>&1 || ! gpus=$(nvidia-smi -L 2>/dev/null) || [ -z "$gpus" ]; then
    skip "nvidia-smi lists no GPU on this machine"
fi
export CUDA_DEVICE_ORDER=PCI_BUS_ID # the order of nvidia-smi: cuda:N is its N, unless CUDA_VISIBLE_DEVICES leaves some out
case $device in cuda:*) index=${device#cuda:} ;; *) index=0 ;; esac
smi() { nvidia-smi -i "$index" "--query-gpu=$1" --format=csv,noheader,nounits; }
card=$(smi name,driver_version,memory.total)
card_mib=$(smi memory.total | tr -dc '0-9')
say "$card MiB; host: $jobs cores"
began=$(date +%s)

# --- build ---

build_all()
{
    set -- -DCMAKE_BUILD_TYPE=Release -DSTRATA_CUDA=ON -DSTRATA_BUILD_BENCH=OFF
    capability=$(smi compute_cap 2>/dev/null | tr -dc '0-9') || capability=""
    [ -z "$capability" ] || set -- "$@" "-DSTRATA_CUDA_ARCHITECTURES=$capability" # of this GPU alone: half the time
    if [ -n "$deps" ]; then
        deps=$(cd "$deps" && pwd) || fail "--deps: no such folder"
        sh "$root/tools/gpu_deps.sh" pkg-config "$deps" "$build/pkg-config"
        LD_LIBRARY_PATH=$deps/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export LD_LIBRARY_PATH
        set -- "$@" "-DPKG_CONFIG_EXECUTABLE=$build/pkg-config" "-DCMAKE_PREFIX_PATH=$deps"
    fi
    if command -v ninja >/dev/null 2>&1; then
        set -- "$@" -G Ninja
    fi
    say "build"
    cmake -S "$root" -B "$build" "$@"
    cmake --build "$build" -j "$jobs"
    program=$build/cli/strata
    printf 'built in %s s\n' $(($(date +%s) - began))
}

tests=yes
mkdir -p "$build"
build=$(cd "$build" && pwd)
if [ -n "$program" ]; then
    [ -x "$program" ] || fail "--program $program: cannot be run"
    tests=no
else
    build_all
fi
out=${out:-$build/results}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$out/results.jsonl"
: >"$work/summary"

# --- sizes ---

# 131072 tokens a step, several times the break-even of state in host memory: a gated update has the forward alone as its window.
model=llama-1b seq=2048 micro=4 capped_micro=2 accum=32 steps=6 cap=16G
link="" link_bytes=268435456 # large copies are judged: small ones are about the cost of a call
few=mini loss_seq=256 loss_steps=20 cell_steps=4 cell_cap=64MiB exceed_cap=6G exceed_steps=3
if [ "$small" = yes ]; then
    model=nano seq=32 micro=1 capped_micro=1 accum=1 steps=1 cap=6MiB
    link="--bytes 1M --repeats 1" link_bytes=1048576
    few=nano loss_seq=32 loss_steps=2 cell_steps=1 cell_cap=6MiB exceed_cap=6MiB exceed_steps=1 card_mib=16
fi
zero="--set zero_optimization"
offload="$zero.stage=3 $zero.offload_optimizer.device=cpu $zero.offload_param.device=cpu"

# --- verdicts ---

# verdict passed|FAILED|ran|"not run" FIGURE LIMIT: one line of the table and of results.jsonl.
verdict()
{
    # shellcheck disable=SC1003 # a backslash
    took=$(($(date +%s) - part_began)) figure=$(printf '%s' "$2" | tr -d '"\\')
    printf '%-10s %-8s %-46s %-34s %5s s\n' "$part" "$1" "$figure" "$3" "$took" >>"$work/summary"
    printf '{"part":"%s","verdict":"%s","figure":"%s","limit":"%s","seconds":%s}\n' "$part" "$1" "$figure" "$3" "$took" >>"$out/results.jsonl"
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

# Seconds that the part may still take, 0 when its time is over.
seconds_left()
{
    now=$(date +%s)
    left=$((part_began + part_seconds - now)) of_all=$((began + minutes * 60 - now))
    [ "$left" -le "$of_all" ] || left=$of_all
    [ "$left" -gt 0 ] && echo "$left" || echo 0
}

# run FILE COMMAND...: within the part's time; standard output to FILE and to be seen.
run()
{
    to=$1 allowed=$(seconds_left) rc=0
    shift
    [ "$allowed" -gt 0 ] || { echo "error: no time is left" >"$work/err"; return 124; }
    timeout "$allowed" "$@" >"$to" 2>"$work/err" || rc=$?
    cat "$to"
    sed 's/^/   /' "$work/err"
    [ "$rc" -ne 124 ] || echo "error: ended after $allowed s" | tee -a "$work/err"
    return "$rc"
}

last_error() { grep -h error "$work/err" 2>/dev/null | tail -n 1 | cut -c 1-90; }

# must FILE COMMAND...: the same; a failure is the part's verdict.
must()
{
    run "$@" && return 0
    verdict FAILED "ended with $rc: $(last_error)" "$part_text"
    return 1
}

needs_tests()
{
    [ "$tests" = yes ] && return 0
    verdict "not run" "no test programs with --program" "$part_text"
    return 1
}

# --- parts ---

# ctest over the tests of names that match.
tests_named()
{
    needs_tests || return 0
    run "$out/$part.txt" ctest --test-dir "$build" -L gpu -R "$1" --output-on-failure --no-tests=error || true
    count=$(grep -c ' Passed ' "$out/$part.txt") || count=0
    if grep -q '\*\*\*Skipped' "$out/$part.txt"; then rc=77; fi
    if [ "$rc" -eq 0 ]; then verdict passed "$count programs" "all pass"; else verdict FAILED "$count passed, ended with $rc" "all pass"; fi
}

contract() { tests_named '^gpu\.device'; }
ops() { tests_named '^gpu\.(ops|attention)'; }

update()
{
    needs_tests || return 0
    must "$out/update.txt" "$build/tests/cuda/test_gpu_update" --long || return 0
    elems=$(sed -n 's/^\([0-9]*\) elements.*/\1/p' "$out/update.txt" "$work/err" | tail -n 1)
    judge "random elements, no difference:" "${elems:-none}" ">=" 1000000000
}

# train NAME SEQ STEPS OPTIONS...: losses to NAME.loss, digests to NAME.digest.
train()
{
    name=$1 train_seq=$2 train_steps=$3
    shift 3
    [ -e "$work/text.bin" ] || { cat "$root"/docs/*.md >"$work/text"; "$program" tokens "$work/text" --tokenizer byte --out "$work/text.bin" >/dev/null; }
    rm -f "$work/$name.jsonl" # it is not overwritten
    run "$work/$name.out" "$program" train --model "$few" --data "$work/text.bin" --seq-len "$train_seq" --max-steps "$train_steps" --quiet \
        --digest --metrics "$work/$name.jsonl" --nvme "$work" "$@" >"$work/$name.log" 2>&1 || { cat "$work/$name.log"; return 1; }
    grep _digest "$work/$name.out" | tr -s ' ' >"$work/$name.digest"
    sed -n 's/.*"step":[0-9]*,"loss":\([0-9.eE+-]*\).*/\1/p' "$work/$name.jsonl" >"$work/$name.loss"
}

losses()
{
    for where in cpu "$device"; do
        train "losses-${where%%:*}" "$loss_seq" "$loss_steps" --device "$where" || {
            verdict FAILED "$where ended with $rc: $(last_error)" "$part_text"
            return
        }
    done
    paste "$work/losses-cpu.loss" "$work/losses-cuda.loss" | tee "$out/losses.txt"
    [ "$(wc -l <"$work/losses-cuda.loss")" -eq "$loss_steps" ] || { verdict FAILED "losses are missing" "$part_text"; return; }
    judge "largest relative difference" "$(awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d } END { print most + 0 }' \
        "$out/losses.txt")" "<=" 1e-3
}

# Cells of the matrix, options each; all of one digest.
matrix_cells()
{
    state=$zero.offload_optimizer
    for budget in 512MiB "$cell_cap"; do
        cell="--device-memory $budget $offload"
        echo "$cell --set strata.update=gated"
        echo "$cell --set strata.update=serial --set strata.accumulation=horizontal"
        echo "$cell $state.ratio=0.5"
        echo "$cell $state.device=nvme --set strata.cache=0"
        [ "$small" = no ] || continue
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
        train cell 32 "$cell_steps" --device "$device" --grad-accum 2 $options </dev/null ||
            { echo "refused: $options"; refused=$((refused + 1)); continue; }
        [ -e "$work/first.digest" ] || cp "$work/cell.digest" "$work/first.digest"
        if [ "$(wc -l <"$work/cell.digest")" -ne 2 ] || ! cmp "$work/cell.digest" "$work/first.digest"; then
            verdict FAILED "cell $((cells + 1)) differs: $(echo "$options" | cut -c 1-60)" "one digest"
            return
        fi
        cells=$((cells + 1))
    done <"$work/cells"
    if [ "$cells" -gt 1 ] && [ "$refused" -eq 0 ]; then verdict passed "$cells cells, one digest" "one digest"
    else verdict FAILED "$cells cells, $refused refused" "one digest"; fi
}

link()
{
    # shellcheck disable=SC2086
    must "$out/link.jsonl" "$program" bench link --device "$device" $link --json || return 0
    for way in upload download; do
        row="\"$way\".*\"bytes\":$link_bytes,"
        judge "$way, $(field "$out/link.jsonl" "$row" gb_per_s | cut -c 1-5) GB/s, of bare copies" "$(field "$out/link.jsonl" "$row" ratio)" ">=" 0.95
    done
}

bench_step()
{
    to=$1 runs=$2
    shift 2
    must "$to" "$program" bench step --device "$device" --only --steps "$runs" --json --seq-len "$seq" "$@"
}

mfu()
{
    bench_step "$out/mfu.jsonl" "$steps" --model "$model" --micro-batch "$micro" --grad-accum 2 || return 0
    judge "of $(field "$out/mfu.jsonl" '"step"' ceiling_tflops | cut -c 1-6) TFLOP/s, $model resident:" "$(field "$out/mfu.jsonl" '"step"' mfu)" ">=" 0.45
    judge "device memory beside the arena, MB" "$(field "$out/mfu.jsonl" '"step"' device_beside_mb)" "<=" 455
}

# As planned, where the smaller device may have to recompute what the larger keeps; then with both recomputing: the cost of the links alone.
capped()
{
    row="\"variant\":\"$cap\""
    for kind in planned recomputed; do
        file=$out/capped.jsonl also=""
        [ "$kind" = planned ] || { file=$out/capped-recomputed.jsonl also="--set strata.activations=recomputed"; }
        # shellcheck disable=SC2086
        bench_step "$file" "$steps" --model "$model" --micro-batch "$capped_micro" --grad-accum "$accum" $offload $also --device-memory "$cap" all || return 0
        judge "$kind: step of $cap by step of all" "$(field "$file" "$row" practicality | awk '{ print 1 / $1 }')" "<=" 1.10
    done
    for way in upload download; do
        judge "$way in the step by the link alone" "$(field "$file" "$row" "$way/link")" ">=" 0.95
    done
}

bound()
{
    rows=0
    for file in mfu capped capped-recomputed; do
        [ -s "$out/$file.jsonl" ] || continue
        while read -r row; do
            echo "$row" >"$work/row"
            judge "step by schedule bound, $file, $(field "$work/row" variant variant)" "$(field "$work/row" variant step/bound)" "<=" 1.10
            rows=$((rows + 1))
        done <"$out/$file.jsonl"
    done
    [ "$rows" -gt 0 ] || verdict "not run" "neither mfu nor capped has rows in $out" "<= 1.10"
}

# config.json of a Llama-like model whose state, 12 bytes per parameter, exceeds the card by a twentieth.
larger_model()
{
    hidden=5120 ffn=13824 vocab=32000
    [ "$small" = no ] || hidden=64 ffn=256 vocab=256
    per_layer=$((4 * hidden * hidden + 3 * hidden * ffn)) outside=$((2 * vocab * hidden))
    layers=$(((card_mib * 1048576 * 21 / 240 - outside) / per_layer + 1))
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

# Where the state that the card cannot hold may lie: in host memory or, where the planner says that this does not do, on disk.
exceeds()
{
    # shellcheck disable=SC2086
    exceeds_one "$model in $exceed_cap" "$out/exceeds-budget.jsonl" $offload --model "$model" --device-memory "$exceed_cap"
    larger_model "$work/larger"
    mkdir -p "$build/swap"
    for tier in cpu nvme; do
        options="$offload $zero.offload_optimizer.device=$tier --model $work/larger"
        [ "$tier" = cpu ] || options="$options --nvme $build/swap"
        # shellcheck disable=SC2086
        if "$program" plan --device "$device" --max-steps 1 --seq-len "$seq" --micro-batch 1 --grad-accum 2 $options >"$work/plan" 2>"$work/err"; then
            exceeds_one "$params_m M parameters, state beyond the card's, $tier" "$out/exceeds-card.jsonl" $options
            return
        fi
    done
    verdict "not run" "$params_m M parameters: $(tail -n 1 "$work/err" | cut -c 1-90)" "state beyond $card_mib MiB"
}

rates()
{
    begin=$(date +%s%N)
    must "$out/rates.json" "$program" info --measure --device "$device" --model "$few" --seq-len 128 --json || return 0
    judge "all of strata info --measure, seconds" "$(awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { print ns * 1e-9 }')" "<=" 6
}

sanitize()
{
    needs_tests || return 0
    command -v compute-sanitizer >/dev/null 2>&1 || { verdict "not run" "compute-sanitizer was not found" "no error"; return; }
    for tool in memcheck racecheck synccheck initcheck; do
        bad="" count=0
        for name in ops attention update device_ops device_matmul device_xent; do
            test=$build/tests/cuda/test_gpu_$name
            [ -x "$test" ] || continue
            [ "$(seconds_left)" -gt 0 ] || { bad="$bad $name(no time)"; continue; }
            (cd "$root" && timeout "$(seconds_left)" compute-sanitizer --error-exitcode 99 --tool $tool "$test") >"$out/sanitize-$tool-$name.txt" 2>&1 || bad="$bad $name($?)"
            count=$((count + 1))
        done
        if [ -z "$bad" ]; then verdict passed "$tool: $count programs" "no error"; else verdict FAILED "$tool:$bad" "no error"; fi
    done
}

wanted()
{
    if [ -n "$only" ]; then
        case ",$only," in *",$1,"*) return 0 ;; *) return 1 ;; esac
    fi
    case $1 in link | mfu | capped | bound | exceeds | rates | sanitize) [ "$quick" = no ] ;; esac
}

list_parts >"$work/parts"
while read -r part part_seconds part_text <&3; do
    wanted "$part" || continue
    say "$part: $part_text"
    part_began=$(date +%s)
    if [ $((part_began - began)) -lt $((minutes * 60)) ]; then "$part"; else verdict "not run" "no time was left" "$part_text"; fi
done 3<"$work/parts"

say "summary: $card MiB, $(($(date +%s) - began)) s, results in $out"
[ "$small" = no ] || echo "toy sizes: the figures mean nothing"
printf '%-10s %-8s %-46s %-34s %7s\n' part verdict figure limit time
cat "$work/summary"
! grep -q '"verdict":"FAILED"' "$out/results.jsonl"
