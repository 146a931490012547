#!/bin/sh
# gpu.sh [options]    - shows on a machine with a GPU what only a GPU can show, part by part, each against its limit and within its time.
# gpu.sh --pack FILE  - builds for such a machine, here, where nvcc and the -dev packages are, and packs what gpu.sh runs there into FILE.
#
#   --window NAME,...  the parts of these windows, of four minutes each: first, second, compare (--list names window, part, seconds).
#                      With first before it, second is left out unless first finds that results are right
#   --only PART,...    these parts alone; without this and --window all of them
#   --out DIR          gets results.jsonl, summary.txt, line.txt and gpu.tar.gz (what every part printed), again after every part;
#                      default build/gpu/results
#   --carried FILE     run what --pack packed; without it the program and its tests are built in --build, for this GPU alone
#   --build DIR        default build/gpu; what is there already is kept
#   --deps DIR         stands for the -dev packages (tools/gpu_deps.sh); neither root nor pkg-config is needed then
#   --program FILE     run this strata and build nothing; --tests DIR: and the test programs there
#   --small            toy sizes: shows that the script works, not what the GPU does
#   --device cuda:N    default cuda
#   --minutes N        of each window, default 4; without one of all parts together
#   --limit N          seconds that no part may exceed
#
# A part that fails or hangs costs its own seconds at most, and as many again where earlier parts left them; the others still run.  Ends with
# 0 when all that ran passed, 1 when something failed, 77 where there is no GPU or no nvcc.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps="" build=$root/build/gpu out="" only="" window="" carried="" program="" tests="" small=no device=cuda minutes="" limit=100000 pack=""
jobs=$(nproc) architecture=""

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
say() { printf '\n== %s\n' "$*"; }
skip() { printf 'gpu: skipped: %s\n' "$*"; exit 77; }
fail() { printf 'gpu: %s\n' "$*" >&2; exit 1; }

# Window (or none), name, seconds it may take, what it shows.  The seconds of a window add up to four minutes at most.
list_parts()
{
    cat <<LIST
-       build        150  the program and its tests are there
first   machine       30  what the machine is; its libraries are read once
first   info          10  the program finds GPU, driver and cublasLt
first   contract      35  every device-table contract test passes on cuda
first   ops           10  kernels agree with the definitions within stated tolerances
first   attention     25  and so does attention
first   losses        30  twenty steps' losses are the cpu device's within 1e-3
first   link          12  copies through the table at 0.95 of bare pinned ones, or more
first   table         25  where a step of the model goes, op by op
first   mfu           48  a resident model at sequence 2048 uses 0.55 of the matmul ceiling, or more; 0.75 is the target
first   update_1e8    15  optimizer kernels equal scalar bit for bit over 1e8 random elements
second  capped       130  a step with 16 GiB of the device takes 1.10 of what the plan predicts, at most
second  bound          3  and 1.10 of its schedule's bound, at most (from the runs of mfu and capped)
second  trace         22  what ran when in the capped run
second  matrix        35  budgets, tiers, policies and shares of the update never change digests
second  module        20  modules of PyTorch train with the same bits wherever their weights are, and with PyTorch's losses
second  sanitize      30  compute-sanitizer is clean on the kernels' tests: memcheck, racecheck
compare torch         60  what PyTorch reaches on this card: matmuls, flash attention, cuDNN's, a copy
compare profile       90  Nsight Compute's sections of the kernels that take most
compare memcheck      90  compute-sanitizer's memcheck is clean on the contract tests
-       layers        30  layers computed from outside, on a stream of the caller's, have the bits of the program's own run
-       rates         15  rates at start are there in a few seconds
-       exceeds      130  models train whose state exceeds the device's budget, and its whole memory
-       update_1e9    90  optimizer kernels equal scalar bit for bit over 1e9 random elements
LIST
}
slow="sanitize torch profile memcheck" # others' tools, whose end at the limit says nothing of the program
decisive="info contract ops attention losses update_1e8" # of first: without them second would measure what is wrong

while [ $# -gt 0 ]; do
    case $1 in
    --deps | --build | --out | --only | --window | --carried | --program | --tests | --device | --minutes | --limit | --pack)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case $1 in
        --deps) deps=$2 ;; --build) build=$2 ;; --out) out=$2 ;; --only) only="$only,$2" ;; --window) window="$window,$2" ;;
        --carried) carried=$2 ;; --program) program=$2 ;; --tests) tests=$2 ;; --device) device=$2 ;; --minutes) minutes=$2 ;;
        --limit) limit=$2 ;; --pack) pack=$2 ;;
        esac
        shift 2
        ;;
    --small) small=yes; shift ;;
    --list) list_parts; exit 0 ;;
    --help | -h) usage; exit 0 ;;
    *) fail "$1: there is no such option; --help lists them" ;;
    esac
done
named=""
for part in $(printf '%s' "$only" | tr ',' ' '); do
    list_parts | awk -v part="$part" '$2 == part { found = 1 } END { exit !found }' || fail "--only $part: there is no such part; --list names them"
    named="$named,$part"
done
[ -z "$only" ] || [ -n "$named" ] || fail "--only names no part; --list names them"
only=$named
for name in $(printf '%s' "$window" | tr ',' ' '); do
    case $name in first | second | compare) ;; *) fail "--window $name: there are first, second and compare" ;; esac
done
[ -z "$window" ] || [ -n "$(printf %s "$window" | tr -d ,)" ] || fail "--window names none: there are first, second and compare"
[ -z "$window" ] || [ -z "$only" ] || fail "--window and --only: one of them"
case $device in cuda | cuda:[0-9]*) ;; *) fail "--device $device: cuda or cuda:N" ;; esac
case ${device#cuda} in :*[!0-9]*) fail "--device $device: cuda or cuda:N" ;; esac
number() { case $2 in "" | . | *[!0-9.]* | *.*.*) fail "$1 $2: is not a number" ;; esac; }
number --limit "$limit"
[ -z "$minutes" ] || number --minutes "$minutes"
minutes=${minutes:-${window:+4}}

# In thousandths of a second, as all times here.
now() { read -r up _ </proc/uptime && echo "${up%.*}${up#*.}0"; } # 12.34 is 12340; no setting of a clock changes it
thousandths() { awk -v of="$1" 'BEGIN { printf "%d\n", of * 1000 }'; }

mkdir -p "$build"
build=$(cd "$build" && pwd)

if [ -n "$deps" ]; then
    deps=$(cd "$deps" && pwd) || fail "--deps: no such folder"
    export LD_LIBRARY_PATH="$deps/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
export root build deps jobs architecture
if [ -n "$pack" ]; then
    architecture=90 # of the GPUs that are lent
    sh "$root/tools/gpu_parts.sh" compile
    sh "$root/tools/gpu_deps.sh" pack "$build" "$pack"
    exit 0
fi

# --- what the machine has ---

if [ -z "$program$carried" ] && ! command -v nvcc >/dev/null 2>&1 && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    skip "nvcc was not found (PATH, CUDA_HOME, /usr/local/cuda): the GPU's tests cannot be built"
fi
if ! command -v nvidia-smi >/dev/null 2>&1 || ! gpus=$(nvidia-smi -L 2>/dev/null) || [ -z "$gpus" ]; then
    skip "nvidia-smi lists no GPU on this machine"
fi
export CUDA_DEVICE_ORDER=PCI_BUS_ID # the order of nvidia-smi: cuda:N is its N, unless CUDA_VISIBLE_DEVICES leaves some out
case $device in cuda:*) index=${device#cuda:} ;; *) index=0 ;; esac
smi() { nvidia-smi -i "$index" "--query-gpu=$1" --format=csv,noheader,nounits; }
card=$(smi name,driver_version,memory.total) || fail "--device $device: nvidia-smi finds no GPU $index: $(printf '%s' "$card" | head -c 200)"
card_mib=$(smi memory.total | tr -dc '0-9') # of the whole card; `info` knows a slice's
say "$card MiB; host: $jobs cores"

out=${out:-$build/results}
details=$build/details
rm -rf "$details"
mkdir -p "$out" "$details"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
dmon="" group="" file="" lost=no
leave()
{
    [ -z "$group" ] || kill -s KILL -- "-$group" "$group" 2>/dev/null || true
    [ -z "$dmon" ] || kill "$dmon" 2>/dev/null || true
    rm -rf "$work"
    [ -z "$file" ] || rm -f "$file.new" 2>/dev/null || true
}
trap leave EXIT
trap 'exit 129' HUP # a signal alone would end sh without the above
trap 'exit 130' INT
trap 'exit 143' TERM
tied="setpriv --pdeathsig TERM" # what it starts is told of an end that no trap sees; timeout passes that on to its group
$tied true 2>/dev/null || tied=""
: >"$details/results.jsonl"
: >"$work/summary"

needs_build=yes
if [ -n "$program" ]; then
    { [ -f "$program" ] && [ -x "$program" ]; } || fail "--program $program: cannot be run"
    needs_build=no
elif [ -n "$carried" ]; then
    [ -r "$carried" ] || fail "--carried $carried: cannot be read"
    program=$build/carried/bin/strata tests=$build/carried/bin
    export LD_LIBRARY_PATH="$build/carried/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
else
    program=$build/cli/strata tests=$build/tests/cuda
fi

# --- results ---

# keep NAME COMMAND...: what the command prints is this file of the results; where that cannot be written, its last whole state stays.
keep()
{
    file=$out/$1
    shift
    if "$@" >"$file.new" && mv "$file.new" "$file"; then return; fi
    lost=yes
    rm -f "$file.new" 2>/dev/null || true
}

line()
{
    awk '{ printf "%s%s %s", (NR > 1 ? " | " : ""), $1, $2 }' "$work/summary"
    echo
}

archive() # 1 of tar: a file grew meanwhile
{
    (cd "$details" && find . -type f -size -6144k | tar -czf - -T -) || [ $? -eq 1 ]
}

# What is done so far, so that a session that is cut off has it: few files, none of which is large (a lent machine gives back eight of 16 MiB).
refresh()
{
    keep results.jsonl cat "$details/results.jsonl"
    keep summary.txt cat "$work/summary"
    keep line.txt line
    keep gpu.tar.gz archive
    printf -- '-- so far: %s\n' "$(line)"
}

# wanted PART WINDOW
wanted()
{
    if [ "$1" = build ]; then
        [ "$needs_build" = yes ]
        return
    fi
    case ,$only, in *",$1,"*) return 0 ;; esac
    case ,$window, in *",$2,"*) return 0 ;; esac
    [ -z "$only$window" ]
}

# The parts that are wanted: window, seconds that the later ones of that window need, and as above.  Without --window all share one.
plan_parts()
{
    list_parts | while read -r of name rest; do
        wanted "$name" "$of" || continue
        [ -n "$window" ] || of=-
        echo "$of $name $rest"
    done | awk '{ line[NR] = $0; of[NR] = $1; seconds[NR] = $3 }
        END { for (i = NR; i > 0; i--) later[i] = of[i + 1] == of[i] ? later[i + 1] + seconds[i + 1] : 0
              for (i = 1; i <= NR; i++) print later[i], line[i] }'
}

# The decisive parts that failed or did not run, if this run has any; only a window is left out for them.
unclean()
{
    [ "$part_window" = second ] || return 0
    for name in $decisive; do
        ! grep -q "\"part\":\"$name\",\"verdict\":\"\(FAILED\|not run\)\"" "$details/results.jsonl" || printf ' %s' "$name"
    done
}

# What gpu_parts.sh is told.
export program tests carried details work device index card card_mib small part part_text part_began part_ends
tell() { sh "$root/tools/gpu_parts.sh" verdict "$@" || lost=yes; }

# What the part may take: twice its seconds, of that no more than leaves the later parts theirs, but its own in any case while there is time.
grant()
{
    own_ms=$(thousandths "$part_seconds")
    part_ms=$((2 * own_ms)) least_ms=$(((own_ms < limit_ms ? own_ms : limit_ms) / 10 + 1))
    if [ -n "$ends" ]; then
        left_ms=$((ends - part_began)) spare_ms=$((ends - part_began - later_seconds * 1000))
        [ "$part_ms" -le "$spare_ms" ] || part_ms=$spare_ms
        [ "$part_ms" -ge "$own_ms" ] || part_ms=$own_ms
        [ "$part_ms" -le "$left_ms" ] || part_ms=$left_ms
    fi
    [ "$part_ms" -le "$limit_ms" ] || part_ms=$limit_ms
}

# One part, in a process group of its own that ends with it, whatever it started.
run_part()
{
    part_began=$(now) rc=0
    grant
    part_ends=$((part_began + part_ms)) why=$(unclean)
    if [ -n "$why" ]; then
        tell "not run" "left out for$why" "$part_text"
        return
    fi
    if [ "$part_ms" -lt "$least_ms" ]; then # with less a part shows nothing, and 0 is no limit to timeout
        tell "not run" "no time was left" "$part_text"
        return
    fi
    lines=$(wc -l <"$details/results.jsonl")
    seconds=$((part_ms / 1000)).$(printf %03d $((part_ms % 1000)))
    printf -- '-- %s s at most\n' "$seconds"
    $tied timeout -k 2 "$seconds" sh "$root/tools/gpu_parts.sh" "$part" &
    group=$!
    wait "$group" || rc=$?
    kill -s KILL -- "-$group" 2>/dev/null || true
    group=""
    case $rc in
    0) [ "$(wc -l <"$details/results.jsonl")" -gt "$lines" ] || tell FAILED "it said nothing" "$part_text" ;;
    124 | 137)
        case " $slow " in *" $part "*) verdict="not run" ;; *) verdict=FAILED ;; esac
        tell "$verdict" "ended at its limit, $seconds s" "$part_text"
        ;;
    *) tell FAILED "ended with $rc" "$part_text" ;;
    esac
}

began=$(now) limit_ms=$(thousandths "$limit") ends="" current=""
if nvidia-smi dmon -i "$index" -c 1 >/dev/null 2>&1; then
    $tied nvidia-smi dmon -i "$index" -s pucm -o T >"$details/dmon.txt" 2>&1 &
    dmon=$!
fi
plan_parts >"$work/parts"
while read -r later_seconds part_window part part_seconds part_text <&3; do
    if [ "$part_window" != "$current" ]; then
        current=$part_window ends=""
        [ -z "$minutes" ] || ends=$(($(now) + $(thousandths "$minutes") * 60))
    fi
    say "$part: $part_text"
    run_part 3<&-
    refresh
done 3<"$work/parts"

say "summary: $card MiB, $((($(now) - began) / 1000)) s, results in $out"
[ "$small" = no ] || echo "toy sizes: the figures mean nothing"
printf '%-10s %-8s %-58s %-40s %7s\n' part verdict figure limit time
cat "$work/summary"
! grep -q 'left out for' "$work/summary" || echo "the second window was left out: give the machine back, repair, come again"
[ "$lost" = no ] || fail "not all results could be written to $out and $details"
! grep -q '"verdict":"FAILED"' "$details/results.jsonl"
