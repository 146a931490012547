#!/bin/sh
# demo_text.sh FILE - the text that the demos train on, the King James Bible, unless it is there.
set -eu

[ ! -s "$1" ] || exit 0
if ! command -v bible >/dev/null; then
    echo "demo_text.sh: bible was not found: install bible-kjv (make deps does)" >&2
    exit 1
fi
bible -f Gen1:1-Rev22:21 | sed -E 's/^[A-Za-z0-9]+:[0-9]+ //' >"$1.part"
mv "$1.part" "$1"
