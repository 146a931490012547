#!/bin/sh
# gpu.sh [options]    - shows on a machine with a GPU what only a GPU can show, part by part, each against its limit and within its time.
# gpu.sh --pack FILE  - builds for such a machine, here, where nvcc and the -dev packages are, and packs what gpu.sh runs there into FILE.
#
#   --window A|B|C   the parts of one window, of nine minutes each: A first; without it all of them (--list names window, part, seconds)
#   --only PART,...  these parts alone
#   --out DIR        gets results.jsonl, summary.txt, line.txt and gpu.tar.gz (what every part printed), again after every part;
#                    default build/gpu/results
#   --carried FILE   run what --pack packed; without it the program and its tests are built in --build, for this GPU alone
#   --build DIR      default build/gpu; what is there already is kept
#   --deps DIR       stands for the -dev packages (tools/gpu_deps.sh); neither root nor pkg-config is needed then
#   --program FILE   run this strata and build nothing; --tests DIR: and the test programs there
#   --small          toy sizes: shows that the script works, not what the GPU does
#   --device cuda:N  default cuda
#   --minutes N      of all parts together; default 9 for a window
#   --limit N        seconds that no part may exceed
#
# A part that fails or hangs costs its own limit at most, and the others still run.  Ends with 0 when all that ran passed, 1 when something
# failed, 77 where there is no GPU or no nvcc.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps="" build=$root/build/gpu out="" only="" window="" carried="" program="" tests="" small=no device=cuda minutes="" limit=100000 pack=""
jobs=$(nproc) architecture=""

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
say() { printf '\n== %s\n' "$*"; }
skip() { printf 'gpu: skipped: %s\n' "$*"; exit 77; }
fail() { printf 'gpu: %s\n' "$*" >&2; exit 1; }

# Window, name, seconds it may take, what it shows.  The build may be part of each window; the limits of one add up to nine minutes at most.
list_parts()
{
    cat <<LIST
- build        150  the program and its tests are there
A info          15  the program finds GPU, driver and cublasLt
A contract      80  every device-table contract test passes on cuda
A ops           50  kernels agree with the definitions within stated tolerances
A attention     50  and so does attention
A link          30  copies through the table at 0.95 of bare pinned ones, or more
A table         75  where a step of the model goes, op by op
A mfu           85  a resident model at sequence 2048 uses 45 % of the matmul ceiling, or more
B losses        50  twenty steps' losses are the cpu device's within 1e-3
B matrix       100  budgets, tiers, policies and shares of the update never change digests
B capped       185  a step with 16 GiB of the device takes 1.10 of one with all of it, at most
B bound          5  and 1.10 of its schedule's bound, at most (from the runs of mfu and capped)
B trace         45  what ran when in the capped run
C rates         15  rates at start are there in a few seconds
C update_1e8    20  optimizer kernels equal scalar bit for bit over 1e8 random elements
C sanitize     130  compute-sanitizer is clean on the small tests: memcheck, racecheck, synccheck, initcheck
C exceeds      130  models train whose state exceeds the device's budget, and its whole memory
C update_1e9    90  optimizer kernels equal scalar bit for bit over 1e9 random elements
LIST
}

while [ $# -gt 0 ]; do
    case $1 in
    --deps | --build | --out | --only | --window | --carried | --program | --tests | --device | --minutes | --limit | --pack)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case $1 in
        --deps) deps=$2 ;; --build) build=$2 ;; --out) out=$2 ;; --only) only="$only,$2" ;; --window) window=$2 ;;
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
case $window in "" | A | B | C) ;; *) fail "--window $window: there are A, B and C" ;; esac
case $device in cuda | cuda:[0-9]*) ;; *) fail "--device $device: cuda or cuda:N" ;; esac
case ${device#cuda} in :*[!0-9]*) fail "--device $device: cuda or cuda:N" ;; esac
number() { case $2 in "" | . | *[!0-9.]* | *.*.*) fail "$1 $2: is not a number" ;; esac; }
number --limit "$limit"
[ -z "$minutes" ] || number --minutes "$minutes"
minutes=${minutes:-${window:+9}}

# In thousandths of a second, as all times here.
now() { date +%s%3N; }
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
card=$(smi name,driver_version,memory.total)
card_mib=$(smi memory.total | tr -dc '0-9') # of the whole card; `info` knows a slice's
say "$card MiB; host: $jobs cores"

out=${out:-$build/results}
details=$build/details
rm -rf "$details"
mkdir -p "$out" "$details"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
dmon="" group=""
leave()
{
    [ -z "$group" ] || kill -s KILL -- "-$group" "$group" 2>/dev/null || true
    [ -z "$dmon" ] || kill "$dmon" 2>/dev/null || true
    rm -rf "$work"
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

# What is done so far, so that a session that is cut off has it: few files, none of which is large (a lent machine gives back eight of 16 MiB).
refresh()
{
    cp "$details/results.jsonl" "$out/results.jsonl.new"
    cp "$work/summary" "$out/summary.txt.new"
    awk '{ printf "%s%s %s", (NR > 1 ? " | " : ""), $1, $2 }' "$work/summary" >"$out/line.txt.new"
    echo >>"$out/line.txt.new"
    (cd "$details" && find . -type f -size -6144k | tar -czf "$out/gpu.tar.gz.new" -T -)
    for name in results.jsonl summary.txt line.txt gpu.tar.gz; do mv "$out/$name.new" "$out/$name"; done
    printf -- '-- so far: %s\n' "$(cat "$out/line.txt")"
}

wanted()
{
    if [ "$1" = build ]; then
        [ "$needs_build" = yes ]
        return
    fi
    if [ -n "$only" ]; then
        case ",$only," in *",$1,"*) return 0 ;; *) return 1 ;; esac
    fi
    [ -z "$window" ] || [ "$window" = "$2" ]
}

# What gpu_parts.sh is told.
export program tests carried details work device index card card_mib small part part_text part_began part_ends
tell() { sh "$root/tools/gpu_parts.sh" verdict "$@"; }

# One part, in a process group of its own that ends with it, whatever it started.
run_part()
{
    part_began=$(now) part_ms=$(thousandths "$part_seconds") rc=0
    [ "$part_ms" -le "$limit_ms" ] || part_ms=$limit_ms
    least_ms=$((part_ms / 10 + 1)) # with less a part shows nothing, and 0 is no limit to timeout
    [ -z "$ends" ] || [ $((part_began + part_ms)) -le "$ends" ] || part_ms=$((ends - part_began))
    part_ends=$((part_began + part_ms))
    if [ "$part_ms" -lt "$least_ms" ]; then
        tell "not run" "no time was left" "$part_text"
        return
    fi
    lines=$(wc -l <"$details/results.jsonl")
    seconds=$((part_ms / 1000)).$(printf %03d $((part_ms % 1000)))
    $tied timeout -k 2 "$seconds" sh "$root/tools/gpu_parts.sh" "$part" &
    group=$!
    wait "$group" || rc=$?
    kill -s KILL -- "-$group" 2>/dev/null || true
    group=""
    case $rc in
    0) [ "$(wc -l <"$details/results.jsonl")" -gt "$lines" ] || tell FAILED "it said nothing" "$part_text" ;;
    124 | 137) tell FAILED "ended at its limit, $seconds s" "$part_text" ;;
    *) tell FAILED "ended with $rc" "$part_text" ;;
    esac
}

began=$(now) limit_ms=$(thousandths "$limit") ends=""
[ -z "$minutes" ] || ends=$((began + $(thousandths "$minutes") * 60))
if nvidia-smi dmon -i "$index" -c 1 >/dev/null 2>&1; then
    $tied nvidia-smi dmon -i "$index" -s pucm -o T >"$details/dmon.txt" 2>&1 &
    dmon=$!
fi
list_parts >"$work/parts"
while read -r part_window part part_seconds part_text <&3; do
    wanted "$part" "$part_window" || continue
    say "$part: $part_text"
    run_part 3<&-
    refresh
done 3<"$work/parts"

say "summary: $card MiB, $((($(now) - began) / 1000)) s, results in $out"
[ "$small" = no ] || echo "toy sizes: the figures mean nothing"
printf '%-10s %-8s %-58s %-40s %7s\n' part verdict figure limit time
cat "$work/summary"
! grep -q '"verdict":"FAILED"' "$details/results.jsonl"
