#!/bin/sh
# test_neon.sh SOURCE_DIR WORK_DIR DIGEST SUITES KERNEL... - aarch64's kernels, built by a cross compiler and run under qemu-user:
# the suites that hold every table against scalar, then their digests against those of this machine's own kernels.
#
# DIGEST: kernel_digest of this machine.  SUITES: words, each tests/kernels/test_<word>.c.  KERNEL...: files of kernels/ as CMake
# lists them for aarch64.  Exit 77, a skip, without the cross compiler, its libc or qemu-aarch64 (tools/install_deps.sh test).
set -eu
source=$1 work=$2 digest=$3 suites=$4
shift 4
compiler=aarch64-linux-gnu-gcc
sysroot=/usr/aarch64-linux-gnu

for tool in "$compiler" qemu-aarch64; do
    if ! command -v "$tool" >/dev/null 2>&1; then
        echo "test_neon: skipped: $tool was not found"
        exit 77
    fi
done
if ! [ -e "$sysroot/include/stdio.h" ]; then
    echo "test_neon: skipped: no libc for aarch64 in $sysroot"
    exit 77
fi

compile() { # FILE OBJECT
    "$compiler" -std=c17 -O1 -ffp-contract=off -fno-math-errno -D_GNU_SOURCE -Wall -Wextra -Wshadow -Wconversion \
        -I"$source/tests/kernels/cross" -I"$source" -I"$source/include" -c "$source/$1" -o "$2"
}

build() { # FILE PROGRAM [OBJECT]...
    file=$1 program=$2
    shift 2
    compile "$file" "$program.o"
    "$compiler" "$program.o" "$@" "$work"/objects/*.o -lm -o "$program"
}

emulate() { # PROGRAM [ARGUMENT]...
    qemu-aarch64 -L "$sysroot" "$@"
}

rm -rf "${work:?}"
mkdir -p "$work/objects"
for file in "$@"; do
    compile "kernels/$file" "$work/objects/$(basename "$file" .c).o"
done
compile tests/common/test_main.c "$work/test_main.o" # not among the others: kernel_digest has a main() of its own
compile tests/common/sample.c "$work/objects/sample.o"
compile core/base/cpu.c "$work/objects/cpu.o"
compile tests/kernels/kernel_fixture.c "$work/objects/kernel_fixture.o"
compile tests/kernels/update_fixture.c "$work/objects/update_fixture.o"
compile tests/kernels/update_scalar_fma.c "$work/objects/update_scalar_fma.o"

cd "$source" # suites read tests/golden
for suite in $suites; do
    build "tests/kernels/test_$suite.c" "$work/$suite" "$work/test_main.o"
    emulate "$work/$suite"
done

build tests/kernels/kernel_digest.c "$work/kernel_digest"
lengths=4
[ "$suites" != dispatch ] || lengths=2 # the shorter ones, where no other suite is asked for
"$digest" scalar $lengths >"$work/here.txt"
"$digest" auto $lengths >"$work/here_auto.txt"
emulate "$work/kernel_digest" scalar $lengths >"$work/scalar.txt"
emulate "$work/kernel_digest" neon $lengths >"$work/neon.txt"
for other in here_auto scalar neon; do
    diff "$work/here.txt" "$work/$other.txt"
done
echo "test_neon: $(wc -l <"$work/here.txt") digests agree on both processors"
