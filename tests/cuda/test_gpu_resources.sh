#!/bin/sh
# test_gpu_resources.sh SOURCE_DIR - tools/gpu_resources.py over a cuobjdump of its own: what the table says, which differences are
# errors and which are only named, and that an update keeps the columns that it was not given.  Exit 77 where there is no python3 or c++filt.
set -eu

tool=$1/tools/gpu_resources.py
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -c 'import argparse' 2>/dev/null && c++filt --version >/dev/null 2>&1 || { echo "skipped: no python3 or c++filt"; exit 77; }
printf '#!/bin/sh\ncat "$2$1"\n' >"$dir/cuobjdump"
chmod +x "$dir/cuobjdump"

# cubin ARCH REGISTERS STACK: kernel `inner` of 128 threads, whose outer loop has a loop with two tensor products.
cubin()
{
    mkdir -p "$dir/sm_$1"
    cat >"$dir/sm_$1/kernels.cubin-res-usage" <<OUT
 Function _Z5innerILj64ELb1EEvv:
  REG:$2 STACK:$3 SHARED:0 LOCAL:0 CONSTANT[0]:552 TEXTURE:0 SURFACE:0 SAMPLER:0
OUT
    cat >"$dir/sm_$1/kernels.cubin-elf" <<OUT
.nv.info._Z5innerILj64ELb1EEvv
	Attribute:	EIATTR_MAX_THREADS
	Format:	EIFMT_SVAL
	Value:	0x80 0x1 0x1
OUT
    cat >"$dir/sm_$1/kernels.cubin-sass" <<OUT
		Function : _Z5innerILj64ELb1EEvv
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/              @!P0 LDGSTS.E.BYPASS.128 [R3], [R8.64] ;
        /*0030*/                   HMMA.16816.F32.BF16 R12, R4, R10, R12 ;
        /*0040*/                   HMMA.16816.F32.BF16 R16, R4, R11, R16 ;
        /*0050*/                   MUFU.EX2 R5, R5 ;
        /*0060*/               @P1 BRA 0x10 ;
        /*0070*/               @P2 BRA 0x0 ;
        /*0080*/                   EXIT ;
OUT
    : >"$dir/sm_$1/kernels.cubin"
}

# run STATUS WORD [OPTION] ARCH...: the tool's exit code, and a word of what it says ("": nothing).
run()
{
    status=$1 word=$2
    shift 2
    option=
    [ "$1" != --update ] || { option=$1; shift; }
    files=
    for arch in "$@"; do files="$files $dir/sm_$arch/kernels.cubin"; done
    got=0
    python3 "$tool" $option --cuobjdump "$dir/cuobjdump" "$dir/table" $files >"$dir/said" 2>&1 || got=$?
    if [ "$got" != "$status" ] || { [ -n "$word" ] && ! grep -q "$word" "$dir/said"; } || { [ -z "$word" ] && [ -s "$dir/said" ]; }; then
        echo "exit code $got, not $status, or no \"$word\":"
        cat "$dir/said"
        exit 1
    fi
}

has()
{
    grep -qF "$1" "$dir/table" || { echo "no \"$1\" in"; cat "$dir/table"; exit 1; }
}

cubin 80 96 0
cubin 90 96 0
run 1 'FAIL new: kernels: inner<64,true> x128, sm_90: - -> 96/5/9' 80 90
run 0 '' --update 80 90
has 'inner<64,true> x128        | 96/5/9    | 96/5/9'
has '  loops                    | 6/2/1/1/1 | 6/2/1/1/1'
run 0 '' 80 90
run 0 '' 90
cubin 90 90 0 # as many blocks
run 0 'note: kernels: inner<64,true> x128, sm_90: 96/5/9 -> 90/5/9' 80 90
cubin 90 97 0 # one register over the step
run 1 'FAIL other blocks' 90
cubin 90 96 16
run 1 'FAIL larger stack.*96/5/9+stack16' 80 90
run 0 '' --update 90
has '| 96/5/9    | 96/5/9+stack16'
run 0 '' 80 90
: >"$dir/sm_90/kernels.cubin-res-usage"
run 1 'FAIL gone' 90
run 0 '' --update 90
has '| 96/5/9    |'
rm "$dir/sm_80/kernels.cubin-sass"
run 1 'kernels.cubin: cat: ' 80

# What is not understood has a sentence, and no trace of Python's.
refused()
{
    run 1 "$@"
    [ "$(wc -l <"$dir/said")" -eq 1 ] || { cat "$dir/said"; exit 1; }
}
cp -r "$dir/sm_90" "$dir/sm_90x"
refused "its folder is 'sm_90x'" 90x
cubin 90 0 0
refused 'kernels.cubin: what .* is not understood' 90
cubin 90 96 0
: >"$dir/sm_90/kernels.cubin-sass"
refused 'kernels.cubin: what .* is not understood' 90
cubin 90 96 0
sed -i 's|96/5/9|x/y|' "$dir/table"
refused 'table: is no table of this tool' 90
rm "$dir/cuobjdump"
sed -i 's|x/y|96/5/9|' "$dir/table"
refused 'cuobjdump: No such file' 90
