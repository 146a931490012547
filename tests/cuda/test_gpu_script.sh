#!/bin/sh
# test_gpu_script.sh STRATA SOURCE_DIR [--all] - tools/gpu.sh with toy sizes, over the emulator, with a nvidia-smi, a compute-sanitizer and test
# programs of its own: every part leaves a verdict; one that fails or hangs costs its limit, and what it started ends with it; what is
# done is packed after every part, for a session that is cut off.  A sample, without --all, leaves out the parts that compute.
set -eu

strata=$1
script=$2/tools/gpu.sh
extent=${3:-sample}
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
dir="$top/a space" # which every path has
mkdir "$dir" "$dir/temporary"
mkdir "$dir/bin" "$dir/none" "$dir/good" "$dir/bad"
export dir strata TMPDIR="$dir/temporary"

# program FILE: a script of its own, from standard input.
program()
{
    { echo '#!/bin/sh'; cat; } >"$1"
    chmod +x "$1"
}

program "$dir/bin/nvidia-smi" <<'SMI'
case $* in
-L) echo "GPU 0: NVIDIA H200" ;;
*"-i 9"*) echo "No devices were found"; exit 6 ;;
*dmon*-c*) exit 0 ;;
*dmon*) echo "# gpu pwr"; exec sleep 1000 ;;
*name,driver_version,memory.total*) echo "NVIDIA H200, 580.00, 8192" ;;
*memory.total*) echo 8192 ;;
*compute_cap*) echo 9.0 ;;
*) exit 1 ;;
esac
SMI
program "$dir/bin/compute-sanitizer" <<'SAN'
while [ "${1#--}" != "$1" ]; do shift; [ "${1#--}" != "$1" ] || [ "${1#/}" != "$1" ] || shift; done
"$@" || { echo "========= ERROR SUMMARY: 3 errors"; exit 99; }
SAN
# A clock that is set forward and back all the time: no limit depends on it.
program "$dir/bin/date" <<'DATE'
if [ -e "$dir/later" ]; then
    rm "$dir/later"
    exec /bin/date "$@"
fi
: >"$dir/later"
exec /bin/date -d "1 hour" "$@"
DATE
program "$dir/none/nvidia-smi" <<'SMI'
exit 9
SMI
# A program that hangs, with a child that does so too, and leaves their numbers.
program "$dir/hangs" <<'HANG'
sleep 1000 &
echo "$$ $!" >>"$dir/hung"
wait
HANG
program "$dir/broken" <<'BROKEN'
echo "strata: error: all is lost" >&2
exit 4
BROKEN
# What is compared with; neither python3 with torch nor Nsight Compute is needed.
program "$dir/bin/python3" <<'PYTHON'
case $* in *compare_torch.py*) echo "matmul: 1 us, 2 TFLOP/s" ;; *) echo /usr ;; esac
PYTHON
program "$dir/bin/ncu" <<'NCU'
echo "$*" >"$dir/ncu"
echo "forward_halves"
NCU
# One repeat shows that a probe works.
program "$dir/quick" <<'QUICK'
exec "$strata" "$@" --fault machine.patience:0:0:0
QUICK
# What ends gpu.sh itself while the table is measured.
program "$dir/cut" <<'CUT'
case "$*" in *--ops*) kill -s KILL "$(cat "$dir/pid")" ;; esac
exec "$dir/quick" "$@"
CUT
for name in update ops attention device_ops device_matmul device_llama device_experts device_attention device_xent device_timed layers; do
    program "$dir/good/test_gpu_$name" <<'GOOD'
echo "[       OK ] one"
[ "$1" != --elems ] || echo "$2 elements"
GOOD
    cp "$dir/hangs" "$dir/bad/test_gpu_$name"
done
cp "$dir/broken" "$dir/bad/test_gpu_ops"

# gpu CODE OPTIONS...: the script ends with this code; what it said is in $dir/said.
gpu()
{
    want=$1 code=0
    shift
    PATH=$dir/bin:$PATH sh "$script" --small --build "$dir/build" "$@" >"$dir/said" 2>&1 || code=$?
    [ "$code" -eq "$want" ] || complain "gpu.sh $*: ended with $code, not $want"
}

complain()
{
    echo "$*" >&2
    cat "$dir/said" >&2
    exit 1
}

# verdict PART VERDICT COUNT: so many lines of the part, all with this verdict.
verdict()
{
    results=$dir/build/results/results.jsonl
    all=$(grep -c "\"part\":\"$1\"" "$results") || all=0
    same=$(grep -c "\"part\":\"$1\",\"verdict\":\"$2\"" "$results") || same=0
    if [ "$all" -ne "$3" ] || [ "$same" -ne "$3" ]; then complain "$1: $same of $all lines say $2, not $3"; fi
}

# The results are what a lent machine gives back, and the archive has these files.
packed()
{
    (cd "$dir/build/results" && [ "$(echo *)" = "gpu.tar.gz line.txt results.jsonl summary.txt" ]) || complain "other files in results"
    tar -tzf "$dir/build/results/gpu.tar.gz" >"$dir/packed"
    for file in "$@"; do
        grep -q "^./$file\$" "$dir/packed" || complain "$file is not packed"
    done
}

# Each window is four minutes at most, and its command is short.
sh "$script" --list >"$dir/list"
awk '$1 != "-" { s[$1] += $3 } END { for (w in s) if (s[w] > 240) { print w, s[w]; exit 1 } }' "$dir/list"

# Each kernel that is looked at is there.
sed -n "s/^kernels='\(.*\)'/\1/p" "$2/tools/gpu_parts.sh" | tr '|' '\n' >"$dir/kernels"
[ -s "$dir/kernels" ] || complain "no kernels are named"
while read -r kernel; do
    case $kernel in nvjet | gemm) continue ;; esac # cublasLt's
    grep -rqE "^($kernel)|[ *]($kernel)[a-z0-9_]*\(" "$2/offload/device/cuda" "$2/kernels" || complain "there is no kernel $kernel"
done <"$dir/kernels"

# As a lent machine does: first, and second as first's results are right.
sample="--only machine,info,contract,ops,attention,link,sanitize"
[ "$extent" != --all ] || sample="--window first,second"
# shellcheck disable=SC2086 # options are words
gpu 0 --program "$dir/quick" --tests "$dir/good" $sample
verdict machine ran 1
verdict info passed 1
verdict contract passed 6
verdict ops passed 1
verdict attention passed 2
verdict link ran 2
verdict sanitize passed 2
grep -q '"part":"info".* 1024 MiB' "$dir/build/results/results.jsonl" # the device that the program sees, not the card
packed results.jsonl machine.txt info.json info.txt device_ops.txt link.jsonl sanitize-racecheck-ops.txt
grep -q '^machine ran | info passed | contract passed | .*link ran' "$dir/build/results/line.txt"
if [ "$extent" = --all ]; then
    verdict losses ran 1
    verdict table ran 1
    verdict mfu ran 3
    verdict update_1e8 ran 1
    packed table.txt mfu.jsonl dmon.txt
    grep -q '^machine ran | info passed | contract passed | .* | table ran | mfu ran' "$dir/build/results/line.txt"
    verdict capped ran 8
    verdict bound ran 5
    verdict trace ran 1
    verdict matrix passed 1
    verdict module passed 1
    packed capped.jsonl trace.json.gz
    gpu 0 --program "$dir/quick" --tests "$dir/good" --only layers,rates,exceeds
    verdict layers passed 1
    verdict rates ran 1
    verdict exceeds ran 2
    packed exceeds-card.jsonl
fi
[ ! -e "$dir/build/swap" ] || [ -z "$(ls "$dir/build/swap")" ] || complain "files were left in the swap directory"

# Beside others, where their tools are and where they are not.
if [ "$extent" = --all ]; then
    gpu 0 --program "$dir/quick" --tests "$dir/good" --window compare
    verdict torch ran 1
    verdict profile ran 1
    verdict memcheck passed 1
    packed torch.txt ncu.txt memcheck-memcheck-device_llama.txt
    grep -q "bench step --device cuda .*--micro-batch" "$dir/ncu"
fi
rm "$dir/bin/ncu"
printf '#!/bin/sh\necho "skipped: no torch" >&2\nexit 77\n' >"$dir/bin/python3"
gpu 0 --program "$dir/quick" --only module,torch,profile,memcheck
for part in module torch profile memcheck; do verdict "$part" "not run" 1; done

# A machine that shows little memory is asked for more; one that has no more does not run what needs it.
printf 'MemTotal: 900000 kB\nMemAvailable: 400000 kB\n' >"$dir/meminfo"
MEMINFO=$dir/meminfo gpu 0 --program "$dir/quick" --only capped,trace
for part in capped trace; do verdict "$part" "not run" 1; done
grep -q '"390 MiB of host memory are available","limit":">= 1024 MiB"' "$dir/build/results/results.jsonl" || complain "no two numbers"

# Where first finds that a result is wrong, second is left out.
gpu 1 --program "$dir/broken" --tests "$dir/good" --window first --window second
verdict losses FAILED 1
for part in capped bound trace matrix sanitize; do verdict "$part" "not run" 1; done
grep -q '"part":"capped".*left out for info losses"' "$dir/build/results/results.jsonl" || complain "it does not say why"

# A test that fails is run again under memcheck.
gpu 1 --program "$dir/quick" --tests "$dir/bad" --only ops
grep -q '"part":"ops","verdict":"FAILED","figure":"ops ended with 4; memcheck 99: .*ERROR SUMMARY: 3 errors' "$dir/build/results/results.jsonl"
packed results.jsonl ops.txt ops.memcheck.txt

# Everything hangs: each part says so and costs its limit, and all of them together the window's minutes.
gpu 1 --program "$dir/hangs" --tests "$dir/bad" --limit 0.4
awk '$2 != "build" { print $2 }' "$dir/list" >"$dir/parts"
while read -r part; do
    grep -q "\"part\":\"$part\"" "$dir/build/results/results.jsonl" || complain "$part left no verdict"
    case $part in
    memcheck) want="not run" ;; # out of time
    machine | bound | sanitize | module | torch | profile) continue ;;
    *) want=FAILED ;;
    esac
    ! grep "\"part\":\"$part\"" "$dir/build/results/results.jsonl" | grep -qv "$want" || complain "$part did not end with $want"
done <"$dir/parts"
for pid in $(cat "$dir/hung"); do
    timeout 30 tail --pid="$pid" -f /dev/null || complain "$pid still runs" # what is killed is gone soon
done
gpu 1 --program "$dir/hangs" --only link,mfu,rates --limit 6 --minutes 0.05
verdict link FAILED 1
for part in mfu rates; do verdict "$part" "not run" 1; done

# Everything fails at once; no time; nothing to run.
gpu 1 --program "$dir/broken" --only link,mfu,rates
for part in link mfu rates; do verdict "$part" FAILED 1; done
grep -q 'all is lost' "$dir/build/results/results.jsonl"
gpu 1 --program "$dir/broken" --only link,rates --minutes 0.6 # 12 and 15 s of 36: what link may take beyond its own is not rates'
grep -qE '^-- (20\.[0-9]*|21\.000) s at most' "$dir/said" || complain "link may not take 21 s"
grep -q '^-- 30\.000 s at most' "$dir/said" || complain "rates may not take 30 s"
gpu 0 --program "$dir/quick" --only link,rates --minutes 0
verdict link "not run" 1
verdict rates "not run" 1
gpu 0 --program "$dir/hangs" --only link --limit 0
verdict link "not run" 1
gpu 1 --program "$dir/missing"
gpu 1 --program "$dir"
gpu 1 --only speed
grep -q 'there is no such part' "$dir/said"
gpu 1 --program "$dir/quick" --only 'in.*'
gpu 1 --program "$dir/quick" --only ,
gpu 1 --program "$dir/quick" --window A
gpu 1 --program "$dir/quick" --window ,
gpu 1 --program "$dir/quick" --window first --only info
for wrong in abc -1 1.2.3 ''; do
    gpu 1 --program "$dir/quick" --only rates --limit "$wrong"
    [ -z "$wrong" ] || gpu 1 --program "$dir/quick" --only rates --minutes "$wrong"
done
gpu 1 --program "$dir/quick" --windo first
grep -q '^gpu: --windo: there is no such option' "$dir/said"
for wrong in cpu cuda: cuda:x cuda:1x; do
    gpu 1 --program "$dir/quick" --only rates --device "$wrong"
done
gpu 1 --program "$dir/quick" --only rates --device cuda:9
grep -q '^gpu: --device cuda:9: .*No devices were found' "$dir/said" || complain "it does not say that there is no such GPU"
printf '#!/bin/sh\n' >"$dir/silent"
chmod +x "$dir/silent"
gpu 1 --program "$dir/silent" --only info
verdict info FAILED 1

# A signal ends it with all that it started; one that it cannot catch leaves files alone.
ends_all="HUP:129 TERM:143"
! setpriv --pdeathsig TERM true 2>/dev/null || ends_all="$ends_all KILL:137"
for ends in $ends_all; do
    : >"$dir/hung"
    mkdir "$dir/tmp"
    TMPDIR=$dir/tmp PATH=$dir/bin:$PATH sh "$script" --small --build "$dir/build" --program "$dir/hangs" --only link >"$dir/said" 2>&1 &
    script_pid=$!
    while [ ! -s "$dir/hung" ]; do sleep 0.1; done
    kill -s "${ends%:*}" "$script_pid"
    code=0
    wait "$script_pid" || code=$?
    [ "$code" -eq "${ends#*:}" ] || complain "${ends%:*}: ended with $code"
    for pid in $(cat "$dir/hung"); do
        timeout 30 tail --pid="$pid" -f /dev/null || complain "$pid still runs after ${ends%:*}"
    done
    [ "$ends" != KILL:137 ] || rm -rf "$dir/tmp"/*
    rmdir "$dir/tmp" || complain "files were left after ${ends%:*}"
done

# What was carried is unpacked and run; a cut keeps what was done.
mkdir "$dir/carried" "$dir/carried/bin" "$dir/carried/lib"
cp "$dir/good"/* "$dir/carried/bin"
cp "$dir/cut" "$dir/carried/bin/strata"
tar -C "$dir/carried" -czf "$dir/carried.tar.gz" bin lib
parts="--only attention,link,table,mfu"
[ "$extent" != --all ] || parts="--window first"
PATH=$dir/bin:$PATH sh -c 'echo $$ >"$dir/pid"; exec sh "$0" --small --build "$dir/build" --carried "$dir/carried.tar.gz" $1' "$script" "$parts" \
    >"$dir/said" 2>&1 && complain "it was not cut"
verdict build passed 1
verdict attention passed 2
verdict link ran 2
verdict mfu ran 0
packed results.jsonl link.jsonl

# A pack that is not whole, or has no program, leaves nothing to run: not what an older one left.
rm "$dir/carried/bin/strata"
tar -C "$dir/carried" -czf "$dir/no_program.tar.gz" bin lib
head -c 200 "$dir/carried.tar.gz" >"$dir/cut.tar.gz"
for pack in no_program cut; do
    mkdir -p "$dir/build/carried/bin"
    cp "$dir/quick" "$dir/build/carried/bin/strata"
    gpu 1 --carried "$dir/$pack.tar.gz" --only info
    verdict build FAILED 1
    verdict info "not run" 1
done

# What cannot be written of the results costs nothing else, but is no success; what is printed never breaks their lines.
mkdir -p "$dir/results/gpu.tar.gz.new"
program "$dir/odd" <<'ODD'
printf 'strata: error: a\tb\033[0m \303\\ "\n' >&2
exit 4
ODD
gpu 1 --program "$dir/odd" --only info,link --out "$dir/results"
grep -q '"part":"link","verdict":"FAILED","figure":"ended with 4: strata: error: ab\[0m  "' "$dir/results/results.jsonl" || complain "no link, or odd bytes"
gpu 1 --program "$dir/quick" --only link --out "$dir/results"
grep -q '^gpu: not all results could be written' "$dir/said" || complain "it does not say what could not be written"

mv "$dir/none/nvidia-smi" "$dir/bin/nvidia-smi"
gpu 77 --program "$dir/quick"
