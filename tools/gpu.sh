#!/bin/sh
# gpu.sh [options]      - builds strata on a machine with a GPU and shows there what only a GPU can show, part by part, each against its limit.
# gpu.sh --collect DIR  - copies into DIR what --deps takes: run it where the -dev packages are installed.
#
#   --only PART,...  these parts alone (--list names them)        --quick  the tests alone, no speed
#   --out DIR        figures as JSON lines, and what every part printed; default build/gpu/results
#   --build DIR      default build/gpu; what is built there already is kept
#   --deps DIR       stands for the -dev packages: include/, lib/ (libraries of uring, aio, hwloc, cjson, dnnl, xxhash, cmocka and what
#                    they stand on); neither root nor pkg-config is needed then
#   --program FILE   measure this strata and build nothing: parts that need test programs are not run
#   --small          toy sizes: shows that the script works, not what the GPU does
#   --device cuda:N  default cuda
#   --minutes N      the machine goes back after so many: what does not begin in time is not run, what runs then is ended
#
# Parts run in the order of their weight; one that takes longer than its own limit is ended.  Ends with 0 when all that ran passed, 1 when
# something failed, 77 where there is no GPU or no nvcc.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps="" build=$root/build/gpu out="" quick=no collect="" only="" program="" small=no device=cuda minutes=1000000
jobs=$(nproc)

usage() { sed -n '2,17s/^# \{0,1\}//p' "$0"; }
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
        --deps) deps=$2 ;; --build) build=$2 ;; --collect) collect=$2 ;; --out) out=$2 ;;
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

# --- --collect: headers, libraries, and of shared libraries what they stand on but libc's and the compiler's ---

# The file that the linker takes for -lNAME: a static library where it needs no other.
library_of()
{
    case $1 in
    uring | aio | xxhash) cc -print-file-name="lib$1.a" ;;
    *) cc -print-file-name="lib$1.so" ;;
    esac
}

collect_library()
{
    file=$(library_of "$1")
    [ -e "$file" ] || fail "--collect: lib$1 was not found: tools/install_deps.sh installs it"
    case $file in
    *.a) cp -L "$file" "$2/"; return ;;
    esac
    real=$(readlink -f "$file")
    soname=$(objdump -p "$real" | awk '$1 == "SONAME" { print $2 }')
    cp "$real" "$2/$soname"
    ln -sf "$soname" "$2/lib$1.so"
    ldd "$real" | awk '$2 == "=>" { print $1, $3 }' | while read -r name path; do
        case $name in libc.so* | libm.so* | libgcc_s.so* | libstdc++.so* | libpthread.so* | libdl.so* | librt.so*) continue ;; esac
        cp -L "$path" "$2/$name"
    done
}

if [ -n "$collect" ]; then
    mkdir -p "$collect/include" "$collect/lib"
    for header in liburing.h liburing libaio.h hwloc.h hwloc cjson dnnl.h dnnl_types.h dnnl_config.h dnnl_version.h oneapi xxhash.h \
        xxh3.h cmocka.h; do
        for dir in /usr/include "/usr/include/$(cc -dumpmachine)"; do
            [ ! -e "$dir/$header" ] || cp -RL "$dir/$header" "$collect/include/"
        done
    done
    for name in uring aio hwloc cjson dnnl xxhash cmocka; do
        collect_library "$name" "$collect/lib"
    done
    du -sh "$collect"
    exit 0
fi

# --- what the machine has ---

if [ -z "$program" ] && ! command -v nvcc >/dev/null 2>&1 && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    skip "nvcc was not found (PATH, CUDA_HOME, /usr/local/cuda): the GPU's tests cannot be built"
fi
if ! command -v nvidia-smi >/dev/null 2>&1 || ! gpus=$(nvidia-smi -L 2>/dev/null) || [ -z "$gpus" ]; then
    skip "nvidia-smi lists no GPU on this machine"
fi
case $device in cuda:*) index=${device#cuda:} ;; *) index=0 ;; esac
smi() { nvidia-smi -i "$index" "--query-gpu=$1" --format=csv,noheader,nounits; }
card=$(smi name,driver_version,memory.total)
card_mib=$(smi memory.total | tr -dc '0-9')
say "$card MiB; host: $jobs cores"
began=$(date +%s)

# --- --deps: pkg-config's answers for a folder without .pc files ---

write_pkg_config()
{
    cat >"$1" <<SCRIPT
#!/bin/sh
names="" what=""
for word in "\$@"; do
    case \$word in
    --version) echo 0.29.2; exit 0 ;;
    --modversion) what=version ;;
    --cflags* | --variable*) what=\${word%%=*} ;;
    --libs-only-L) what=folder ;;
    --libs-only-other) exit 0 ;;
    --libs*) what=libs ;;
    --static | --exists | --*errors) ;;
    --*) ;;
    *) names="\$names \${word#lib}" ;;
    esac
done
for name in \$names; do
    name=\${name%% *}
    [ -e "$2/lib/lib\$name.a" ] || [ -e "$2/lib/lib\$name.so" ] || exit 1
    case \$what in
    version) echo 9.9 ;;
    --cflags | --cflags-only-I) echo "-I$2/include" ;;
    folder) echo "-L$2/lib" ;;
    libs) echo "-L$2/lib -l\$name" ;;
    esac
done
SCRIPT
    chmod +x "$1"
}

# --- build ---

build_all()
{
    set -- -DCMAKE_BUILD_TYPE=Release -DSTRATA_CUDA=ON -DSTRATA_BUILD_BENCH=OFF
    capability=$(smi compute_cap 2>/dev/null | tr -dc '0-9') || capability=""
    [ -z "$capability" ] || set -- "$@" "-DSTRATA_CUDA_ARCHITECTURES=$capability" # of this GPU alone: half the time
    if [ -n "$deps" ]; then
        write_pkg_config "$build/pkg-config" "$deps"
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

if [ -n "$deps" ]; then
    deps=$(cd "$deps" && pwd) || fail "--deps: no such folder"
    if [ ! -d "$deps/include" ] || [ ! -d "$deps/lib" ]; then
        fail "--deps $deps: include/ and lib/ are expected there"
    fi
fi
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

# --- sizes ---

# 131072 tokens a step, several times the break-even of state in host memory: a gated update has the forward alone as its window.
model=llama-1b seq=2048 micro=4 accum=16 steps=6 cap=16G link="" few=mini
exceed_cap=6G exceed_steps=3
if [ "$small" = yes ]; then
    model=nano seq=32 micro=1 accum=1 steps=1 cap=6MiB link="--bytes 1M --repeats 1" few=nano
    exceed_cap=6MiB exceed_steps=1 card_mib=16
fi
offload="--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu --set zero_optimization.offload_param.device=cpu"

# --- parts, verdicts ---

summary="" failures=0 part="" part_began=0

# verdict passed|FAILED|ran|"not run" FIGURE LIMIT: one line of the table and of results.jsonl.
verdict()
{
    took=$(($(date +%s) - part_began))
    summary="$summary$(printf '%-10s %-8s %-46s %-34s %5s s' "$part" "$1" "$2" "$3" "$took")
"
    printf '{"part":"%s","verdict":"%s","figure":"%s","limit":"%s","seconds":%s}\n' "$part" "$1" "$2" "$3" "$took" >>"$out/results.jsonl"
    printf -- '-- %s: %s: %s (%s)\n' "$part" "$1" "$2" "$3"
    [ "$1" != FAILED ] || failures=$((failures + 1))
}

# judge WHAT VALUE RELATION LIMIT: a number against its limit; with --small numbers mean nothing, and being one is all that is asked.
judge()
{
    holds=$(awk -v v="$2" -v op="$3" -v limit="$4" -v small="$small" 'BEGIN {
        if (v !~ /^-?[0-9.]+([eE][-+]?[0-9]+)?$/) print "FAILED"
        else if (small == "yes") print "ran"
        else print (op == "<=" ? v + 0 <= limit + 0 : v + 0 >= limit + 0) ? "passed" : "FAILED" }')
    verdict "$holds" "$1 $(awk -v v="$2" 'BEGIN { if (v ~ /^-?[0-9]/) printf "%.4g", v; else print "no figure" }')" "$3 $4"
}

# The value of a key in the row of FILE that matches PATTERN, the last where several do.
field() { grep -- "$2" "$1" 2>/dev/null | sed -n "s|.*\"$3\":\([^,}]*\).*|\1|p" | tail -n 1; }

# Seconds that the part may still take, 0 when its time is over.
seconds_left()
{
    now=$(date +%s)
    list_parts | awk -v part="$part" -v of_part=$((part_began - now)) -v of_all=$((began + minutes * 60 - now)) '$1 == part {
        left = $2 + of_part < of_all ? $2 + of_part : of_all; print (left > 0 ? left : 0) }'
}

text_of() { list_parts | awk -v part="$1" '$1 == part { $1 = $2 = ""; sub(/^ */, ""); print }'; }

# run FILE COMMAND...: within the part's time; standard output to FILE and to be seen.
run()
{
    to=$1 left=$(seconds_left)
    shift
    rc=0
    [ "$left" -gt 0 ] || { echo "error: no time is left" >"$work/err"; return 124; }
    timeout "$left" "$@" >"$to" 2>"$work/err" || rc=$?
    cat "$to"
    sed 's/^/   /' "$work/err"
    [ "$rc" -ne 124 ] || echo "error: ended after $left s" | tee -a "$work/err"
    return "$rc"
}

# shellcheck disable=SC1003 # a backslash
failed_run() { verdict FAILED "ended with $1: $(grep -h error "$work/err" 2>/dev/null | tail -n 1 | tr -d '"\\' | cut -c 1-90)" "$(text_of "$part")"; }

needs_tests()
{
    [ "$tests" = yes ] && return 0
    verdict "not run" "no test programs with --program" "$(text_of "$part")"
    return 1
}

# ctest over the tests of names that match.
tests_named()
{
    needs_tests || return 0
    rc=0
    run "$out/$part.txt" ctest --test-dir "$build" -L gpu -R "$1" --output-on-failure --no-tests=error || rc=$?
    count=$(grep -c ' Passed ' "$out/$part.txt") || count=0
    if grep -q '\*\*\*Skipped' "$out/$part.txt"; then rc=77; fi
    if [ "$rc" -eq 0 ]; then verdict passed "$count programs" "all pass"; else verdict FAILED "$count passed, ended with $rc" "all pass"; fi
}

contract() { tests_named '^gpu\.device'; }
ops() { tests_named '^gpu\.(ops|attention)'; }

update()
{
    needs_tests || return 0
    rc=0
    run "$out/update.txt" "$build/tests/cuda/test_gpu_update" --long || rc=$?
    elems=$(sed -n 's/^\([0-9]*\) elements.*/\1/p' "$out/update.txt" "$work/err" | tail -n 1)
    if [ "$rc" -eq 0 ]; then judge "random elements, no difference:" "${elems:-none}" ">=" 1000000000; else failed_run "$rc"; fi
}

text_tokens()
{
    [ -e "$work/text.bin" ] || { cat "$root"/docs/*.md >"$work/text"; "$program" tokens "$work/text" --tokenizer byte --out "$work/text.bin" >/dev/null; }
}

# train NAME OPTIONS...: losses to NAME.loss, digests to NAME.digest.
train()
{
    name=$1
    shift
    rc=0
    run "$work/$name.out" "$program" train --model "$few" --data "$work/text.bin" --seq-len "$train_seq" --max-steps "$train_steps" --quiet \
        --digest --metrics "$work/$name.jsonl" --nvme "$work" "$@" >"$work/$name.log" 2>&1 || rc=$?
    [ "$rc" -eq 0 ] || { cat "$work/$name.log"; return "$rc"; }
    grep _digest "$work/$name.out" | tr -s ' ' >"$work/$name.digest"
    sed -n 's/.*"step":[0-9]*,"loss":\([0-9.eE+-]*\).*/\1/p' "$work/$name.jsonl" >"$work/$name.loss"
}

losses()
{
    text_tokens
    train_seq=$([ "$small" = yes ] && echo 32 || echo 256) train_steps=$([ "$small" = yes ] && echo 2 || echo 20)
    for where in cpu "$device"; do
        train "losses-${where%%:*}" --device "$where" || { failed_run $?; return; }
    done
    paste "$work/losses-cpu.loss" "$work/losses-cuda.loss" | tee "$out/losses.txt"
    [ "$(wc -l <"$work/losses-cuda.loss")" -eq "$train_steps" ] || { verdict FAILED "losses are missing" "$(text_of losses)"; return; }
    judge "largest relative difference" "$(awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) most = d } END { print most + 0 }' \
        "$out/losses.txt")" "<=" 1e-3
}

# Cells of the matrix, options each; all of one digest.
matrix_cells()
{
    share=zero_optimization.offload_optimizer.ratio
    for budget in 512MiB "$matrix_cap"; do
        echo "--device-memory $budget $offload --set strata.update=gated"
        echo "--device-memory $budget $offload --set strata.update=serial --set strata.accumulation=horizontal"
        echo "--device-memory $budget $offload --set $share=0.5"
        echo "--device-memory $budget $offload --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0"
        [ "$small" = yes ] || {
            echo "--device-memory $budget $offload --set $share=0"
            echo "--device-memory $budget $offload --set $share=1 --set strata.cache=0"
            echo "--device-memory $budget $offload --set zero_optimization.offload_param.device=nvme --set zero_optimization.offload_optimizer.device=nvme"
            echo "--device-memory $budget $offload --threads 3 --set strata.activations=recomputed"
        }
    done
}

matrix()
{
    text_tokens
    train_seq=32 train_steps=$([ "$small" = yes ] && echo 1 || echo 4) matrix_cap=$([ "$small" = yes ] && echo 6MiB || echo 64MiB)
    cells=0 refused=0
    rm -f "$work/first.digest"
    matrix_cells >"$work/cells"
    while read -r options; do
        # shellcheck disable=SC2086 # options are words
        train cell --device "$device" --grad-accum 2 $options </dev/null || { echo "refused: $options"; refused=$((refused + 1)); continue; }
        [ -e "$work/first.digest" ] || cp "$work/cell.digest" "$work/first.digest"
        if [ "$(wc -l <"$work/cell.digest")" -ne 2 ] || ! cmp "$work/cell.digest" "$work/first.digest"; then
            verdict FAILED "cell $((cells + 1)) differs: $(echo "$options" | tr -d '"' | cut -c 1-60)" "one digest"
            return
        fi
        cells=$((cells + 1))
    done <"$work/cells"
    if [ "$cells" -gt 1 ] && [ "$refused" -eq 0 ]; then verdict passed "$cells cells, one digest" "one digest"
    else verdict FAILED "$cells cells, $refused refused" "one digest"; fi
}

# Large copies: small ones are about the cost of a call.
link()
{
    rc=0
    # shellcheck disable=SC2086
    run "$out/link.jsonl" "$program" bench link --device "$device" $link --json || rc=$?
    [ "$rc" -eq 0 ] || { failed_run "$rc"; return; }
    bytes=$([ "$small" = yes ] && echo 1048576 || echo 268435456)
    for way in upload download; do
        judge "$way, $(field "$out/link.jsonl" "\"$way\".*\"bytes\":$bytes," gb_per_s | cut -c 1-5) GB/s, of bare copies" \
            "$(field "$out/link.jsonl" "\"$way\".*\"bytes\":$bytes," ratio)" ">=" 0.95
    done
}

bench_step()
{
    to=$1
    shift
    run "$to" "$program" bench step --device "$device" --only --steps "$steps" --json "$@"
}

mfu()
{
    rc=0
    bench_step "$out/mfu.jsonl" --model "$model" --seq-len "$seq" --micro-batch "$micro" --grad-accum 2 || rc=$?
    [ "$rc" -eq 0 ] || { failed_run "$rc"; return; }
    judge "of $(field "$out/mfu.jsonl" '"step"' ceiling_tflops | cut -c 1-6) TFLOP/s, $model resident:" "$(field "$out/mfu.jsonl" '"step"' mfu)" ">=" 0.45
    judge "device memory beside the arena, MB" "$(field "$out/mfu.jsonl" '"step"' device_beside_mb)" "<=" 570
}

# As planned, where the smaller device may have to recompute what the larger keeps; then with both recomputing: the cost of the links alone.
capped()
{
    for kind in planned recomputed; do
        to=$out/capped.jsonl also=""
        [ "$kind" = planned ] || { to=$out/capped-recomputed.jsonl; also="--set strata.activations=recomputed"; }
        rc=0
        # shellcheck disable=SC2086
        bench_step "$to" --model "$model" --seq-len "$seq" --micro-batch "$micro" --grad-accum "$accum" $offload $also \
            --device-memory "$cap" all || rc=$?
        [ "$rc" -eq 0 ] || { failed_run "$rc"; return; }
        judge "$kind: step of $cap by step of all" "$(field "$to" "\"variant\":\"$cap\"" practicality | awk '{ print 1 / $1 }')" "<=" 1.10
    done
    for way in upload download; do
        judge "$way in the step by the link alone" "$(field "$to" "\"variant\":\"$cap\"" "$way/link")" ">=" 0.95
    done
}

bound()
{
    rows=0
    for file in mfu capped capped-recomputed; do
        [ -s "$out/$file.jsonl" ] || continue
        while read -r row; do
            echo "$row" >"$work/row"
            judge "step by schedule bound, $file, $(field "$work/row" variant variant | tr -d '"')" "$(field "$work/row" variant step/bound)" "<=" 1.10
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
    layers=$(awk -v mib="$card_mib" -v h=$hidden -v f=$ffn -v v=$vocab 'BEGIN {
        layer = 4 * h * h + 3 * h * f; print int((1.05 * mib * 1048576 / 12 - 2 * v * h) / layer) + 1 }')
    heads=$((hidden / 128 > 0 ? hidden / 128 : 1))
    mkdir -p "$1"
    printf '{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_act":"silu","vocab_size":%s,"hidden_size":%s,"intermediate_size":%s,"num_hidden_layers":%s,"num_attention_heads":%s,"num_key_value_heads":%s,"max_position_embeddings":4096,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":false}\n' \
        $vocab $hidden $ffn "$layers" $heads $heads >"$1/config.json"
    params_m=$(awk -v l="$layers" -v h=$hidden -v f=$ffn -v v=$vocab 'BEGIN { print int((l * (4 * h * h + 3 * h * f) + 2 * v * h) / 1e6) }')
}

exceeds_one()
{
    what=$1 to=$2 steps=$exceed_steps
    shift 2
    rc=0
    bench_step "$to" "$@" || rc=$?
    if [ "$rc" -ne 0 ]; then failed_run "$rc"; return; fi
    judge "$what: seconds of a step" "$(field "$to" '"step"' seconds)" ">=" 0
}

# Where the state that the card cannot hold may lie: in host memory or, where the planner says that this does not do, on disk.
exceeds()
{
    # shellcheck disable=SC2086
    exceeds_one "$model in $exceed_cap" "$out/exceeds-budget.jsonl" $offload --model "$model" --seq-len "$seq" --micro-batch 1 --grad-accum 2 \
        --device-memory "$exceed_cap"
    larger_model "$work/larger"
    mkdir -p "$build/swap"
    for tier in cpu nvme; do
        options="$offload --set zero_optimization.offload_optimizer.device=$tier --model $work/larger --seq-len $seq --micro-batch 1 --grad-accum 2"
        [ "$tier" = cpu ] || options="$options --nvme $build/swap"
        # shellcheck disable=SC2086
        if "$program" plan --device "$device" --max-steps 1 $options >"$work/plan" 2>"$work/err"; then
            exceeds_one "$params_m M parameters, state beyond the card's, $tier" "$out/exceeds-card.jsonl" $options
            return
        fi
    done
    # shellcheck disable=SC1003
    verdict "not run" "$params_m M parameters: $(tail -n 1 "$work/err" | tr -d '"\\' | cut -c 1-90)" "state beyond $card_mib MiB"
}

rates()
{
    rc=0
    begin=$(date +%s%N)
    run "$out/rates.json" "$program" info --measure --device "$device" --model "$few" --seq-len 128 --json || rc=$?
    [ "$rc" -eq 0 ] || { failed_run "$rc"; return; }
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

for part in $(list_parts | awk '{ print $1 }'); do
    wanted "$part" || continue
    say "$part: $(text_of "$part")"
    part_began=$(date +%s)
    if [ $((part_began - began)) -lt $((minutes * 60)) ]; then "$part"; else verdict "not run" "no time was left" "$(text_of "$part")"; fi
done

say "summary: $card MiB, $(($(date +%s) - began)) s, results in $out"
[ "$small" = no ] || echo "toy sizes: the figures mean nothing"
printf '%-10s %-8s %-46s %-34s %7s\n' part verdict figure limit time
printf '%s' "$summary"
[ "$failures" -eq 0 ]
