#!/bin/sh
# gpu_deps.sh collect DIR          - copies into DIR what strata is built with beside CUDA, for a machine without the -dev packages:
#                                    include/, and lib/ with uring, aio, hwloc, cjson, yaml, dnnl, xxhash, pcre2, cmocka and what they stand on
# gpu_deps.sh pack BUILD FILE      - packs the program and the GPU's tests of a build, and the libraries that they need, for gpu.sh --carried
# gpu_deps.sh pkg-config DIR FILE  - writes to FILE a pkg-config that answers for them there: neither root nor .pc files are needed
set -eu

fail() { printf 'gpu_deps: %s\n' "$*" >&2; exit 1; }

# The file that the linker takes for -lNAME: a static library where it needs no other.
library_of()
{
    case $1 in
    uring | aio | xxhash) cc -print-file-name="lib$1.a" ;;
    *) cc -print-file-name="lib$1.so" ;;
    esac
}

# With a shared library what it stands on but libc's and the compiler's.
collect_library()
{
    file=$(library_of "$1")
    [ -e "$file" ] || fail "lib$1 was not found: tools/install_deps.sh installs it"
    case $file in
    *.a) cp -L "$file" "$2/"; return ;;
    esac
    real=$(readlink -f "$file")
    soname=$(objdump -p "$real" | awk '$1 == "SONAME" { print $2 }')
    cp "$real" "$2/$soname"
    ln -sf "$soname" "$2/lib$1.so"
    libraries_of "$real" | while read -r name path; do
        cp -L "$path" "$2/$name"
    done
}

collect()
{
    mkdir -p "$1/include" "$1/lib"
    for header in liburing.h liburing libaio.h hwloc.h hwloc cjson yaml.h dnnl.h dnnl_types.h dnnl_config.h dnnl_version.h oneapi xxhash.h \
        xxh3.h pcre2.h cmocka.h; do
        for dir in /usr/include "/usr/include/$(cc -dumpmachine)"; do
            [ ! -e "$dir/$header" ] || cp -RL "$dir/$header" "$1/include/"
        done
    done
    for name in uring aio hwloc cjson yaml dnnl xxhash pcre2-8 cmocka; do
        collect_library "$name" "$1/lib"
    done
    du -sh "$1"
}

# Libraries that a program or library needs, but libc's and the compiler's, which every such machine has, newer than those here.
libraries_of()
{
    ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r name path; do
        case $name in libc.so* | libm.so* | libgcc_s.so* | libstdc++.so* | libpthread.so* | libdl.so* | librt.so*) continue ;; esac
        echo "$name $path"
    done
}

pack()
{
    stage=$(mktemp -d) new=$2.new
    trap 'rm -rf "$stage" "$new"' EXIT
    trap 'exit 1' HUP INT TERM
    mkdir "$stage/bin" "$stage/lib"
    for file in "$1"/cli/strata "$1"/tests/cuda/test_gpu_*; do
        [ -x "$file" ] || fail "$file: was not built"
        strip -o "$stage/bin/$(basename "$file")" "$file"
        libraries_of "$file" >>"$stage/needed"
    done
    sort -u "$stage/needed" | while read -r name path; do
        cp -L "$path" "$stage/lib/$name"
    done
    rm "$stage/needed"
    tar -C "$stage" -c bin lib | gzip -9 >"$new"
    mv "$new" "$2"
    weigh "$2"
}

# What travels to a lent machine with the pack is the tree, what git knows or would add, and both may have 64 MiB.
weigh()
{
    packed=$(stat -c %s "$1")
    tree=$(cd "$(dirname "$0")/.." && git ls-files -co --exclude-standard -z 2>/dev/null | xargs -0r stat -c %s 2>/dev/null |
        awk '{ bytes += $1 } END { print bytes + 0 }')
    echo "$1: $((packed >> 20)) MiB, with the tree $(((packed + tree) >> 20)) MiB"
    [ $((packed + tree)) -le 67108864 ] || fail "pack and tree take $(((packed + tree) >> 20)) MiB, 64 may travel: leave something out"
}

write_pkg_config()
{
    cat >"$2" <<SCRIPT
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
    name=\${name%% *} name=\${name%-0.1} # yaml-0.1
    [ -e "$1/lib/lib\$name.a" ] || [ -e "$1/lib/lib\$name.so" ] || exit 1
    case \$what in
    version) echo 9.9 ;;
    --cflags | --cflags-only-I) echo "-I$1/include" ;;
    folder) echo "-L$1/lib" ;;
    libs) echo "-L$1/lib -l\$name" ;;
    esac
done
SCRIPT
    chmod +x "$2"
}

case ${1-}:$# in
collect:2) collect "$2" ;;
pack:3) pack "$2" "$3" ;;
pkg-config:3)
    if [ ! -d "$2/include" ] || [ ! -d "$2/lib" ]; then
        fail "$2: include/ and lib/ are expected there"
    fi
    write_pkg_config "$2" "$3"
    ;;
*) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 1 ;;
esac
