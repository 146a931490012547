#!/bin/sh
# Each offence that tools/check_links.sh must find, long sentences among them, planted one at a time in an otherwise good tree.
set -eu
check=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect STATUS LINE: the tree with LINE in docs/a.md.
expect() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/docs" "$tree/core/base"
    printf 'int st_run(void)\n{\n}\n' >"$tree/core/base/run.c"
    printf '# Words\n\n## On a GPU: (later)\n' >"$tree/README.md"
    printf '# A\n\n[words](../README.md), `core/base/run.c`\n%s\n' "$2" >"$tree/docs/a.md"
    if "$check" "$tree" >"$tree.out" 2>&1; then status=0; else status=$?; fi
    if [ "$status" != "$1" ]; then
        echo "$2: exit $status, not $1"
        cat "$tree.out"
        failures=$((failures + 1))
    fi
    rm -f "$tree.out"
}

expect 0 ''
expect 0 '[here](a.md), [there](../core/base) and [elsewhere](https://example.org/none)'
expect 1 '[here](b.md)'
expect 1 '[here](a.md) and [there](../core/none)'
expect 0 '[on a GPU](../README.md#on-a-gpu-later)'
expect 1 '[on a GPU](../README.md#on-a-gpu)'
expect 0 '[a](#a)'
expect 1 '[b](#b)'
expect 0 '[`st_run()`](../core/base/run.c)'
expect 1 '[`st_walk()`](../core/base/run.c)'
expect 1 '[`run()`](../core/base/run.c)'
expect 1 'see `core/base/none.c`'
expect 0 'see `elsewhere/none.c`'

twelve='one two three four five six seven eight nine ten eleven twelve'
expect 0 "A sentence of twelve words: $twelve. And another: $twelve."
expect 1 "One sentence of many words: $twelve, $twelve, $twelve, $twelve, $twelve."
expect 0 "| a table | $twelve, $twelve, $twelve, $twelve, $twelve |"

[ "$failures" = 0 ] || exit 1
