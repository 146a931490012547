#!/bin/sh
# test_gpu_script.sh STRATA SOURCE_DIR [--all] - tools/gpu.sh with toy sizes, over the emulator and a nvidia-smi of its own: every part that needs
# no test programs runs and leaves a verdict; what fails is told from what passes; nothing is left but the results.
set -eu

strata=$1
script=$2/tools/gpu.sh
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/none"

cat >"$dir/bin/nvidia-smi" <<'SMI'
#!/bin/sh
case $* in
-L) echo "GPU 0: Emulated GPU 0" ;;
*name,driver_version,memory.total*) echo "Emulated GPU 0, 580.00, 1024" ;;
*memory.total*) echo 1024 ;;
*compute_cap*) echo 9.0 ;;
*) exit 1 ;;
esac
SMI
printf '#!/bin/sh\nexit 9\n' >"$dir/none/nvidia-smi"
printf '#!/bin/sh\necho "strata: error: all is lost" >&2\nexit 4\n' >"$dir/broken"
chmod +x "$dir/bin/nvidia-smi" "$dir/none/nvidia-smi" "$dir/broken"

# gpu CODE OPTIONS...: the script ends with this code; what it said is in $dir/said.
gpu()
{
    want=$1 code=0
    shift
    PATH=$dir/bin:$PATH sh "$script" --small --build "$dir/build" "$@" >"$dir/said" 2>&1 || code=$?
    [ "$code" -eq "$want" ] || { echo "gpu.sh $*: ended with $code, not $want" >&2; cat "$dir/said" >&2; exit 1; }
}

# verdict FILE PART VERDICT COUNT: so many lines of the part, all with this verdict.
verdict()
{
    all=$(grep -c "\"part\":\"$2\"" "$1") || all=0
    same=$(grep -c "\"part\":\"$2\",\"verdict\":\"$3\"" "$1") || same=0
    if [ "$all" -ne "$4" ] || [ "$same" -ne "$4" ]; then
        echo "$2: $same of $all lines say $3, not $4" >&2
        cat "$dir/said" "$1" >&2
        exit 1
    fi
}

sh "$script" --list >"$dir/list"
[ "$(wc -l <"$dir/list")" -eq 12 ]

parts=losses,link,mfu,bound,rates
[ "${3:-sample}" != --all ] || parts=$(awk '{ print $1 }' "$dir/list" | paste -sd,)
gpu 0 --program "$strata" --only "$parts"
results=$dir/build/results/results.jsonl
verdict "$results" losses ran 1
verdict "$results" link ran 2
verdict "$results" mfu ran 2
verdict "$results" rates ran 1
for part in link mfu; do
    grep -q '^{"name"' "$dir/build/results/$part.jsonl"
done
if [ "${3:-sample}" = --all ]; then
    for part in contract ops update sanitize; do
        verdict "$results" $part "not run" 1
    done
    verdict "$results" matrix passed 1
    verdict "$results" capped ran 4
    verdict "$results" bound ran 5
    verdict "$results" exceeds ran 2
    grep -q '^{"name"' "$dir/build/results/capped.jsonl"
fi
[ -z "$(ls "$dir/build/swap")" ] || { echo "files were left in the swap directory" >&2; exit 1; }

gpu 1 --program "$dir/broken" --only link,rates --out "$dir/out"
verdict "$dir/out/results.jsonl" link FAILED 1
verdict "$dir/out/results.jsonl" rates FAILED 1
grep -q 'all is lost' "$dir/out/results.jsonl"
gpu 0 --program "$strata" --only link,rates --minutes 0
verdict "$results" link "not run" 1
verdict "$results" rates "not run" 1
gpu 1 --program "$dir/missing"
gpu 1 --only speed
grep -q 'there is no such part' "$dir/said"
gpu 0 --program "$strata" --quick --only link
verdict "$results" link ran 2
rm "$dir/bin/nvidia-smi"
mv "$dir/none/nvidia-smi" "$dir/bin/"
gpu 77 --program "$strata"
