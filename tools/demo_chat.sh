#!/bin/sh
# demo_chat.sh STRATA - a small model learns to answer questions about strata, in a few minutes on two cores.
#
# 1. Trains all of `nano`, with its state on disk as in `make demo`, on the King James text and the documents of this project.
# 2. Trains an adapter beside it on the dialogues of docs/examples/chat: the base stays as it is, and streams from disk.
# 3. Asks the first twenty questions, and prints which answers are the shipped ones.  Exit code 1: fewer than eighteen are.
# Everything it writes lies under build/demo.  The time that it prints is its own, without what `make` builds before it.
set -eu

strata=${1:?usage: demo_chat.sh STRATA}
strata=$(cd "$(dirname "$strata")" && pwd)/$(basename "$strata")
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/build/demo
chat=$root/docs/examples/chat
begin=$(date +%s)
questions=20
wanted=18

say() { printf '\n== %s\n' "$*"; }

# dialogue NUMBER user|assistant: what one of them says, a line for each turn, as JSON writes it.
dialogue()
{
    sed -n "$1p" "$chat/dialogues.jsonl" | sed 's/{"role": /\n/g' | sed -n "s/^\"$2\", \"content\": \"\(.*\)\"}.*/\1/p"
}

mkdir -p "$dir/swap"
cd "$dir"

say "the base: nano, all of its 859 thousand parameters, on the King James Bible and the documents of this project"
"$root/tools/demo_text.sh" kjv.txt
"$strata" tokens kjv.txt "$root/README.md" "$root"/docs/*.md --tokenizer "$chat" --out chat-base.bin --overwrite
"$strata" train --model nano --data chat-base.bin --config "$root/configs/demo_nano.json" --nvme swap --max-steps 1000 --quiet --overwrite \
    --out chat-base
cp "$chat/tokenizer.json" "$chat/tokenizer_config.json" "$chat/chat_template.jinja" chat-base/

say "the adapter: what strata is, in $(wc -l <"$chat/dialogues.jsonl") dialogues"
"$strata" train --model chat-base --data "$chat/dialogues.jsonl" --config "$root/configs/demo_chat.json" --nvme swap --max-steps 1000 \
    --overwrite --out chat-adapter

say "questions, and whether the answers are the shipped ones"
asked=0
right=0
number=0
while [ $asked -lt $questions ]; do
    number=$((number + 1))
    dialogue $number user >chat-questions.txt
    dialogue $number assistant >chat-shipped.txt
    "$strata" generate --model chat-base --adapter chat-adapter --chat --temperature 0 --quiet --json <chat-questions.txt |
        sed -n 's/.*"text":"\(.*\)","stopped_by".*/\1/p' >chat-answers.txt
    turns=$(wc -l <chat-questions.txt)
    [ "$(wc -l <chat-answers.txt)" -eq "$turns" ] || { printf 'demo-chat: question %s has no answer\n' "$number" >&2; exit 1; }
    turn=1
    while [ $turn -le "$turns" ]; do
        question=$(sed -n ${turn}p chat-questions.txt)
        answer=$(sed -n ${turn}p chat-answers.txt)
        shipped=no
        [ "$answer" != "$(sed -n ${turn}p chat-shipped.txt)" ] || { shipped=yes; right=$((right + 1)); }
        asked=$((asked + 1))
        printf '%2d  %-3s  %-50s  %.72s\n' $asked $shipped "$question" "$answer"
        turn=$((turn + 1))
    done
done
[ -z "$(ls swap)" ] || { printf 'demo-chat: something was left in %s/swap\n' "$dir" >&2; exit 1; }

say "$right of $asked answers are the shipped ones ($wanted are enough), after $(($(date +%s) - begin)) s"
printf 'talk to it: %s generate --model %s/chat-base --adapter %s/chat-adapter --chat\n' "$strata" "$dir" "$dir"
[ $right -ge $wanted ]
