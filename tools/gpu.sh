#!/bin/sh
# gpu.sh [--deps DIR] [--build DIR] [--quick] - builds strata on a machine with a GPU and runs every test and bench that needs one.
# gpu.sh --collect DIR                        - copies into DIR what --deps takes: run it where the -dev packages are installed.
#
# DIR stands for the -dev packages: include/, lib/ (libraries of uring, aio, hwloc, cjson, dnnl, xxhash, cmocka and what they stand
# on); neither root nor pkg-config is needed then.  --quick leaves the benches out.
# Ends with 0 when all passed, 1 when something failed, 77 where there is no GPU or no nvcc.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
deps="" build=$root/build/gpu quick=no collect=""
jobs=$(nproc)

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }
say() { printf '\n== %s\n' "$*"; }
skip() { printf 'gpu: skipped: %s\n' "$*"; exit 77; }
fail() { printf 'gpu: %s\n' "$*" >&2; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
    --deps | --build | --collect)
        [ $# -ge 2 ] || fail "$1 needs a folder"
        case $1 in --deps) deps=$2 ;; --build) build=$2 ;; --collect) collect=$2 ;; esac
        shift 2
        ;;
    --quick) quick=yes; shift ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; exit 1 ;;
    esac
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

if ! command -v nvcc >/dev/null 2>&1 && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
    skip "nvcc was not found (PATH, CUDA_HOME, /usr/local/cuda): the GPU's tests cannot be built"
fi
if ! command -v nvidia-smi >/dev/null 2>&1 || ! gpus=$(nvidia-smi -L 2>/dev/null) || [ -z "$gpus" ]; then
    skip "nvidia-smi lists no GPU on this machine"
fi
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"

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

mkdir -p "$build"
build=$(cd "$build" && pwd)
set -- -DCMAKE_BUILD_TYPE=Release -DSTRATA_CUDA=ON
if [ -n "$deps" ]; then
    deps=$(cd "$deps" && pwd) || fail "--deps: no such folder"
    if [ ! -d "$deps/include" ] || [ ! -d "$deps/lib" ]; then
        fail "--deps $deps: include/ and lib/ are expected there"
    fi
    write_pkg_config "$build/pkg-config" "$deps"
    LD_LIBRARY_PATH=$deps/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
    set -- "$@" "-DPKG_CONFIG_EXECUTABLE=$build/pkg-config" "-DCMAKE_PREFIX_PATH=$deps"
fi
if command -v ninja >/dev/null 2>&1; then
    set -- "$@" -G Ninja
fi

# --- build, test, measure ---

failed="" passed=""

# part NAME COMMAND...: runs it, and goes on.
part()
{
    name=$1
    shift
    say "$name"
    if "$@"; then passed="$passed
    passed  $name"; else failed="$failed
    FAILED  $name"; fi
}

# Twenty steps of a small model on the text of the documentation, on the GPU and on the CPU: the losses stand side by side.
train()
{
    cat "$root"/docs/*.md >"$build/text"
    "$build/cli/strata" tokens "$build/text" --tokenizer byte --out "$build/text.bin"
    for device in cpu cuda; do
        echo "-- $device"
        "$build/cli/strata" train --model nano --data "$build/text.bin" --max-steps 20 --seq-len 256 --device "$device"
    done
}

benches()
{
    for bench in "$build"/bench/bench_gpu_*; do
        [ ! -x "$bench" ] || "$bench" || return 1
    done
}

sanitized()
{
    for test in "$build"/tests/cuda/test_gpu_*; do
        [ -x "$test" ] || continue
        (cd "$root" && compute-sanitizer --error-exitcode 1 --tool memcheck "$test") || return 1
    done
}

say "build"
cmake -S "$root" -B "$build" "$@"
cmake --build "$build" -j "$jobs"
part "tests of kernels and device on the GPU" ctest --test-dir "$build" -L gpu --output-on-failure --no-tests=error
part "strata info" "$build/cli/strata" info
if command -v compute-sanitizer >/dev/null 2>&1 && [ "$quick" = no ]; then
    part "compute-sanitizer" sanitized
fi
if [ "$quick" = no ]; then
    part "benches" benches
    part "twenty steps" train
fi

say "summary"
printf '%s\n' "$passed$failed"
[ -z "$failed" ]
