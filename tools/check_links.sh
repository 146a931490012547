#!/bin/sh
# Checks that what the documents name is there: files and folders behind a link or in backquotes, headings behind a link's #, and the
# function where a link's text is `name()`.
#
#     tools/check_links.sh [ROOT]
#
# Prints one line per offence and exits 1; prints the count of checked names and exits 0 otherwise.  Last, check_sentences.sh prints
# how long the sentences of each page are, and fails where they are too long.
set -eu
sentences=$(cd "$(dirname "$0")" && pwd)/check_sentences.sh
cd "${1:-$(dirname "$0")/..}"

# shellcheck disable=SC2046 # file names in this tree have no spaces
awk '
function offence(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; offences++ }
function holds(command) {
    checked++
    if (!(command in known))
        known[command] = system(command) == 0
    return known[command]
}
# As a name from the root, without . and ..
function place(from, path,    parts, count, i, out, depth) {
    sub(/[^\/]*$/, "", from)
    count = split(from path, parts, "/")
    depth = 0
    for (i = 1; i <= count; i++) {
        if (parts[i] == "..")
            depth--
        else if (parts[i] != "" && parts[i] != ".")
            out[++depth] = parts[i]
    }
    from = "."
    for (i = 1; i <= depth; i++)
        from = from "/" out[i]
    return from
}
# Is there a heading that links find under this name?
function has_heading(file, name,    line, found) {
    checked++
    found = 0
    while ((getline line < file) > 0) {
        if (line !~ /^#+ /)
            continue
        line = tolower(line)
        sub(/^#+ /, "", line)
        gsub(/[^a-z0-9 _-]/, "", line)
        gsub(/ /, "-", line)
        found = found || line == name
    }
    close(file)
    return found
}
function check_link(text, target,    file, heading) {
    if (target ~ /^[a-z]+:/)
        return
    heading = target
    if (!sub(/^[^#]*#/, "", heading))
        heading = ""
    sub(/#.*/, "", target)
    file = target == "" ? FILENAME : place(FILENAME, target)
    if (!holds("test -e \047" file "\047"))
        offence("a link to " target ", which is not there")
    else if (heading != "" && !has_heading(file, heading))
        offence("a link to #" heading ", which is no heading of " file)
    else if (text ~ /^`[a-z0-9_]+\(\)`$/ && !holds("grep -q \047\\<" substr(text, 2, length(text) - 4) "(\047 " file))
        offence("a link to " text ", which " file " does not have")
}
FNR == 1 { fenced = 0 }
/^ *```/ { fenced = !fenced }
fenced { next }
{
    for (rest = $0; match(rest, /\[[^]]*\]\([^) ]*\)/); rest = substr(rest, RSTART + RLENGTH)) {
        link = substr(rest, RSTART, RLENGTH)
        middle = index(link, "](")
        check_link(substr(link, 2, middle - 2), substr(link, middle + 2, length(link) - middle - 2))
    }
    for (rest = $0; match(rest, /`[A-Za-z0-9_]+(\/[A-Za-z0-9_.-]+)+\.(c|h|md|sh|py|inc|cu|cpp|tsv|txt|json)`/); rest = substr(rest, RSTART + RLENGTH)) {
        file = substr(rest, RSTART + 1, RLENGTH - 2)
        top = file
        sub(/\/.*/, "", top)
        if (holds("test -d \047" top "\047") && !holds("test -e \047" file "\047"))
            offence(file " is not there")
    }
}
END {
    if (offences > 0)
        exit 1
    printf "check_links: %d names of files, headings and functions\n", checked
}' $(find . -name "*.md" ! -path "./build/*" ! -path "./.git/*" ! -path "./CHANGELOG.md" | sort)
"$sentences" .
