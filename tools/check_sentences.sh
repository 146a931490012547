#!/bin/sh
# check_sentences.sh [ROOT] - words per sentence of each page of documentation: prints one line per page, and exits 1 where a page's
# mean is above the limit.  Code, tables, headings and generated parts do not count; what stands in backquotes is one word.
set -eu
cd "${1:-$(dirname "$0")/..}"

# shellcheck disable=SC2046 # file names in this tree have no spaces
exec awk -v limit=20 '
function end_paragraph(    count, i, parts, words) {
    gsub(/`[^`]*`/, "x", text)
    while (match(text, /\]\([^)]*\)/))
        text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH)
    gsub(/[.!?][")*]*[ ]+/, "\n", text)
    count = split(text, parts, "\n")
    for (i = 1; i <= count; i++)
        if (parts[i] ~ /[A-Za-z]/) {
            sentences[page]++
            words_of[page] += split(parts[i], words, " ")
        }
    text = ""
}
FNR == 1 { end_paragraph(); page = FILENAME; fenced = generated = list = 0 }
/^ *```/ { fenced = !fenced }
/^<!-- Below: generated/ { generated = 1 }
fenced || generated || /^ *\|/ || /^#/ || /^ *$/ {
    end_paragraph()
    list = list && /^ *$/
    next
}
/^ *([-*]|[0-9]+\.) / && !/^    / { end_paragraph(); list = 1; sub(/^ *([-*]|[0-9]+\.) /, "") }
/^    / && text == "" && !(list && /^ ? ? ? ?[A-Za-z]/) { next }
{ text = text " " $0 }
END {
    end_paragraph()
    for (i = 1; i < ARGC; i++)
        if (sentences[ARGV[i]] > 0) {
            mean = words_of[ARGV[i]] / sentences[ARGV[i]]
            printf "%5.1f words a sentence in %s\n", mean, ARGV[i]
            if (mean > limit) {
                printf "%s: more than %d words a sentence: make two of the long ones\n", ARGV[i], limit
                failed = 1
            }
        }
    exit failed
}' $(find . -name "*.md" ! -path "./build/*" ! -path "./.git/*" | sort)
