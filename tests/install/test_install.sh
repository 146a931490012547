#!/bin/sh
# test_install.sh CMAKE BUILD_DIR WORK_DIR GENERATOR CC - installs the build under WORK_DIR, by make and by CMake, then builds and runs the consumer
# from the installed tree: by find_package, and by pkg-config.  The tree is moved in between: nothing in it may know its prefix.
set -eu
cmake=$1 build=$2 work=$3 generator=$4 cc=$5
consumer=$(cd "$(dirname "$0")" && pwd)/consumer
source=$(cd "$(dirname "$0")/../.." && pwd)
examples=$source/docs/examples

rm -rf "${work:?}"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"
prefix=$work/prefix

echo "== the program"
"$prefix/bin/strata" --version

shared=$prefix/share/strata
"$prefix/bin/strata" check "$shared/configs/zero3_cpu.json" >"$work/check.txt"
"$prefix/bin/strata" plan --model gpt2 --config "$shared/configs/zero3_cpu.json" --machine "$shared/machines/laptop-8gb.json" >"$work/plan.txt"
test -e "$prefix/share/doc/strata/docs/fitting_machine.json"
test -e "$shared/hardware.json"
"$prefix/bin/strata" plan --model gpt2 --config "$shared/configs/zero3_cpu.json" --gpu 4090 >"$work/plan_named.txt"

echo "== make install"
make -C "$source" install BUILD="$build" PREFIX=/usr DESTDIR="$work/stage" JOBS=1 >"$work/make.log"
"$work/stage/usr/bin/strata" --version
(cd "$work/stage/usr" && find . -type f | sort) >"$work/made"
(cd "$prefix" && find . -type f | sort) | diff - "$work/made"
make -C "$source" -n demo | grep -q -e "--target $(make -C "$source" -n install | sed -n 's/.*--target //p')\$"

echo "== find_package"
"$cmake" -S "$consumer" -B "$work/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix"
"$cmake" --build "$work/build"
"$work/build/consumer"
"$work/build/consumer_whole"
"$work/build/consumer_shared"
"$work/build/example_optim"
"$work/build/example_io" "$work/example.bin"
if [ -x "$work/build/consumer_cxx" ]; then "$work/build/consumer_cxx"; fi

echo "== pkg-config"
pc=$(find "$prefix" -name strata.pc)
libdir=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
version=$(pkg-config --modversion strata)
flags=$(pkg-config --cflags --libs strata)
# Every object of the static library, so that all it needs must be named.
static="-Wl,--whole-archive $libdir/libstrata.a -Wl,--no-whole-archive $(pkg-config --static --cflags --libs strata | sed 's/-lstrata //')"
# shellcheck disable=SC2086 # lists of words
"$cc" ${CFLAGS:-} -DEXPECTED_VERSION="\"$version\"" "$consumer/consumer.c" -o "$work/consumer_pc" $static
"$work/consumer_pc"
for example in consumer optim io train layers; do
    file=$examples/$example.c
    [ $example != consumer ] || file=$consumer/consumer.c
    # shellcheck disable=SC2086 # lists of words
    "$cc" ${CFLAGS:-} -DEXPECTED_VERSION="\"$version\"" "$file" -o "$work/${example}_shared" $flags -lm
done
LD_LIBRARY_PATH=$libdir "$work/consumer_shared"
LD_LIBRARY_PATH=$libdir "$work/optim_shared"
LD_LIBRARY_PATH=$libdir "$work/io_shared" "$work/example.bin"

echo "== the training example: weights are those of strata train"
cat "$source/docs/design.md" "$source/docs/planning.md" >"$work/text"
"$prefix/bin/strata" tokens "$work/text" --out "$work/text.bin" --heldout 0.5
same="$shared/configs/zero3_cpu.json"
"$prefix/bin/strata" train --config "$same" --model nano --data "$work/text.bin" --max-steps 3 --seq-len 128 --quiet --out "$work/by_program"
LD_LIBRARY_PATH=$libdir "$work/train_shared" "$same" nano "$work/text.bin" "$work/text.heldout.bin" "$work/by_library" 3
"$prefix/bin/strata" digest "$work/by_program" | cut -d" " -f1 >"$work/digest"
"$prefix/bin/strata" digest "$work/by_library" | cut -d" " -f1 | diff "$work/digest" -
LD_LIBRARY_PATH=$libdir "$work/train_shared" "$same" nano "$work/text.bin" "$work/text.heldout.bin" "$work/other" 3 optimizer.params.lr=0.5
if "$prefix/bin/strata" digest "$work/other" | grep -q -f "$work/digest"; then
    echo "another learning rate gives the same weights"
    exit 1
fi

echo "== the example of layers: its loss falls, and a run that goes on has the bits of one that never ended"
mkdir "$work/drive"
LD_LIBRARY_PATH=$libdir "$work/layers_shared" "$work/drive" 300 "$work/layers_whole" | tee "$work/layers.txt"
awk '/^held out/ { sub(",", "", $4); if ($4 + 0 < 0.7 && $5 > 500) ok = 1 } END { exit !ok }' "$work/layers.txt"
LD_LIBRARY_PATH=$libdir "$work/layers_shared" "$work/drive" 120 "$work/layers_parts" >"$work/layers_first.txt"
LD_LIBRARY_PATH=$libdir "$work/layers_shared" "$work/drive" 300 "$work/layers_parts" strata.threads=1 >"$work/layers_second.txt"
grep ^weights "$work/layers.txt" >"$work/layers_digest"
grep ^weights "$work/layers_second.txt" | diff "$work/layers_digest" -
LD_LIBRARY_PATH=$libdir "$work/layers_shared" "$work/drive" 300 "$work/layers_parts" | grep -q "300 steps already"
for manifest in "$work"/layers_parts/step-*/manifest.json; do echo damaged >"$manifest"; done
if LD_LIBRARY_PATH=$libdir "$work/layers_shared" "$work/drive" 400 "$work/layers_parts" 2>"$work/layers_damaged.txt"; then
    echo "a damaged checkpoint was passed over"
    exit 1
fi
grep -q manifest.json "$work/layers_damaged.txt"

echo "== exported symbols"
objdump -p "$libdir/libstrata.so" | grep -q "SONAME  *libstrata.so.${version%.*}\$"
sed -n 's/^STRATA_API.*[ *]\(strata_[a-z0-9_]*\)(.*/\1/p' "$prefix"/include/strata/*.h | sort >"$work/declared"
nm -D --defined-only "$libdir/libstrata.so" | awk '{ print $3 }' | sort | diff "$work/declared" -
