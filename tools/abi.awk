# abi.awk - what strata_abi() returns (include/strata/strata.h), of the preprocessed headers: the build runs
#
#     cc -E -dD strata/strata.h | awk -f tools/abi.awk > abi.c
#
# Numbers and types are those of a 64-bit machine; an assertion beside each lets the compiler say where it is another one.  What the
# headers have not had until now (unions, bit fields, arrays of arrays) ends it with a sentence.

function fail(what) {
    printf "abi.awk: %s, near: %s %s %s %s\n", what, T[at - 1], T[at], T[at + 1], T[at + 2] > "/dev/stderr"
    failed = 1
    exit 1
}

# The text, piece by piece, as a string of C.
function put(piece) {
    gsub(/["\\]/, "\\\\&", piece)
    text = text "    \"" piece "\"\n"
}

function list(so_far, one) { return so_far (so_far == "" ? "" : ",") one }

function prove(what, about) { proof = proof "_Static_assert(" what ", \"" about "\");\n" }

function take(want) {
    if (T[at] != want)
        fail("\"" want "\" expected")
    at++
}

function name() {
    if (T[at] !~ /^[A-Za-z_]/)
        fail("a name expected")
    return T[at++]
}

# A number, or an enumerator that came before.
function term(  sign, value) {
    sign = T[at] == "-" ? -1 : 1
    at += T[at] == "-"
    if (T[at] == "(") {
        at++
        value = number()
        take(")")
        return sign * value
    }
    value = T[at] in value_of ? value_of[T[at]] : T[at]
    if (value !~ /^-?[0-9]+[uUlL]*$/)
        fail("a number expected")
    at++
    return sign * (value + 0)
}

function number(  value) {
    for (value = term(); T[at] == "-" || T[at] == "+"; value += T[at - 1] == "-" ? -term() : term())
        at++
    return value
}

# --- types: what is read last is in the globals json (for the text), c (for the compiler), bytes, align ---

function base(  is_const, word) {
    for (word = name(); word == "const"; word = name())
        is_const = 1
    if (word == "struct" || word == "enum")
        word = word " " name()
    else if (word in alias)
        word = alias[word]
    if (word == "unsigned" && T[at] == "int")
        at++
    if (word !~ /^struct / && !(word in size))
        fail("type " word " is not known")
    if (T[at] == "const")
        is_const = at++
    json = c = (is_const ? "const " : "") word
    sub(/callback /, "", c)
    bytes = size[word]
    align = alignment[word]
}

function pointers() {
    for (; T[at] == "*" || T[at] == "const"; at++) {
        json = json (T[at] == "*" ? "*" : " const")
        c = c (T[at] == "*" ? "*" : " const")
        bytes = align = 8
    }
    sub(/ const$/, "", json)
    sub(/ const$/, "", c)
}

# The rest of a declaration behind its base: pointers, name, array.  A pointer to a function is a callback named after its owner.
function declarator(owner,  returns, c_returns, callback) {
    pointers()
    elems = 0
    if (T[at] == "(" && T[at + 1] == "*") {
        returns = json
        c_returns = c
        at += 2
        callback = name()
        take(")")
        parameters(owner "." callback)
        put_callback(owner "." callback, returns)
        json = "callback " owner "." callback "*"
        c = c_returns " (*)" c_parameters
        bytes = align = 8
        elems = 0
        declared = callback
        return
    }
    declared = T[at] ~ /^[A-Za-z_]/ ? name() : ""
    if (T[at] == "[") {
        at++
        elems = number()
        take("]")
    }
}

# In json_parameters and c_parameters.
function parameters(owner,  texts, types) {
    take("(")
    if (T[at] == "void" && T[at + 1] == ")")
        at++
    while (T[at] != ")") {
        base()
        declarator(owner)
        if (elems > 0) {
            json = json "*"
            c = c "*"
        }
        texts = list(texts, "{\"name\":\"" declared "\",\"type\":\"" json "\"" (elems > 0 ? ",\"count\":" elems : "") "}")
        types = list(types, c)
        if (T[at] == ",")
            at++
    }
    at++
    json_parameters = texts
    c_parameters = "(" (types == "" ? "void" : types) ")"
}

function put_callback(of, returns) {
    callbacks = list(callbacks, "\n\"" of "\":{\"returns\":\"" returns "\",\"params\":[" json_parameters "]}")
}

# --- declarations ---

function enumeration(of,  next_value, values, one) {
    take("{")
    while (T[at] != "}") {
        one = name()
        if (T[at] == "=") {
            at++
            next_value = number()
        }
        value_of[one] = next_value++
        values = list(values, "\"" one "\":" value_of[one])
        prove(one " == " value_of[one], one)
        if (T[at] == ",")
            at++
    }
    at++
    size["enum " of] = alignment["enum " of] = 4
    prove("sizeof(enum " of ") == 4", of)
    enums = list(enums, "\n\"" of "\":{" values "}")
}

function member(of,  first) {
    declarator(of)
    offset = int((offset + align - 1) / align) * align
    members = list(members, "{\"name\":\"" declared "\",\"type\":\"" json "\",\"offset\":" offset ",\"bytes\":" \
                            bytes * (elems > 0 ? elems : 1) (elems > 0 ? ",\"count\":" elems : "") "}")
    prove("offsetof(struct " of ", " declared ") == " offset " && sizeof(((struct " of " *)0)->" declared ") == " \
          bytes * (elems > 0 ? elems : 1), of "." declared)
    prove("_Generic(((struct " of " *)0)->" declared ", " c (elems > 0 ? "*" : "") ": 1, default: 0)", of "." declared)
    first = offset == 0 && json == "size_t" && declared ~ /_size$/
    offset += bytes * (elems > 0 ? elems : 1)
    if (align > most)
        most = align
    return first ? declared : ""
}

function structure(of,  grows, was_json, was_c, was_bytes, was_align) {
    take("{")
    members = ""
    offset = most = 0
    while (T[at] != "}") {
        base()
        for (;;) {
            was_json = json; was_c = c; was_bytes = bytes; was_align = align
            grows = member(of) grows
            if (T[at] != ",")
                break
            at++
            json = was_json; c = was_c; bytes = was_bytes; align = was_align
        }
        take(";")
    }
    at++
    offset = int((offset + most - 1) / most) * most
    size["struct " of] = offset
    alignment["struct " of] = most
    prove("sizeof(struct " of ") == " offset " && _Alignof(struct " of ") == " most, of)
    delete opaque[of]
    structs = list(structs, "\n\"" of "\":{\"bytes\":" offset ",\"align\":" most (grows != "" ? ",\"size_member\":\"" grows "\"" : "") \
                            ",\"members\":[" members "]}")
}

# struct or enum, with or without a body; false: the begin of another declaration.
function tagged(  kind, of, begin) {
    begin = at
    kind = name()
    of = name()
    if (T[at] != "{" && T[at] != ";") {
        at = begin
        return 0
    }
    if (T[at] == ";")
        opaque[of] = 1
    else if (kind == "enum")
        enumeration(of)
    else
        structure(of)
    if (T[at] != ";")
        alias[name()] = kind " " of
    take(";")
    return 1
}

function function_type(is_typedef,  returns, c_returns, of) {
    base()
    pointers()
    returns = json
    c_returns = c
    of = name()
    parameters(of)
    take(";")
    if (is_typedef) {
        put_callback(of, returns)
        alias[of] = "callback " of
        size["callback " of] = alignment["callback " of] = 1
        return
    }
    prove("_Generic(" of ", " c_returns " (*)" c_parameters ": 1, default: 0)", of)
    functions = list(functions, "\n\"" of "\":{\"returns\":\"" returns "\",\"params\":[" json_parameters "]}")
}

function skip_body(  depth) {
    while (T[at] != "{")
        at++
    do {
        depth += T[at] == "{"
        depth -= T[at] == "}"
        at++
    } while (depth > 0)
}

function constant(line,  words, value) {
    split(line, words, /[ \t]+/)
    value = line
    sub(/^#define[ \t]+[A-Z_0-9]+[ \t]*/, "", value)
    if (value ~ /^[0-9]+u$/)
        sub(/u$/, "", value)
    if (value ~ /^(".*"|-?[0-9]+|-?[0-9.]+e-?[0-9]+)$/)
        constants = list(constants, "\n\"" words[2] "\":" value)
}

BEGIN {
    split("char 1 bool 1 int8_t 1 uint8_t 1 int16_t 2 uint16_t 2 int 4 unsigned 4 int32_t 4 uint32_t 4 float 4 int64_t 8 uint64_t 8 " \
          "size_t 8 double 8 void 1 FILE 1", row, " ")
    for (i = 1; i in row; i += 2)
        size[row[i]] = alignment[row[i]] = row[i + 1]
    alias["_Bool"] = "bool"
}

/^# [0-9]+ "/ { ours = $3 ~ /strata\/[a-z]+\.h"$/; next }
ours && /^#define STRATA_[A-Z_0-9]+[ \t]/ { constant($0) }
ours && !/^#/ { source = source " " $0 }

END {
    if (failed)
        exit 1
    gsub(/__attribute__ *\(\(visibility\("default"\)\)\)/, " STRATA_API ", source)
    gsub(/__attribute__ *\(\(warn_unused_result\)\)|\[\[nodiscard\]\]|__extension__/, " ", source)
    gsub(/[][(){}*,;=+-]/, " & ", source)
    split(source, T, /[ \t\n]+/)
    for (at = 2; at in T && T[at] != "";) {
        is_typedef = T[at] == "typedef"
        at += is_typedef
        if (T[at] == "static")
            skip_body()
        else if (T[at] == "STRATA_API" && ++at)
            function_type(0)
        else if ((T[at] != "struct" && T[at] != "enum") || !tagged())
            function_type(1)
    }
    for (of in opaque)
        names[++count] = of
    for (i = 2; i <= count; i++) # in order, whatever awk's own is
        for (k = i; k > 1 && names[k] < names[k - 1]; k--) {
            of = names[k]; names[k] = names[k - 1]; names[k - 1] = of
        }
    for (i = 1; i <= count; i++)
        handles = list(handles, "\"" names[i] "\"")
    parts = "{\"abi\":1,\"pointer_bytes\":8,\n\"constants\":{" constants "},\n\"enums\":{" enums "},\n\"handles\":[" handles \
            "],\n\"structs\":{" structs "},\n\"callbacks\":{" callbacks "},\n\"functions\":{" functions "}}"
    count = split(parts, lines, "\n")
    for (i = 1; i <= count; i++)
        put(lines[i])
    print "/* By tools/abi.awk: do not edit. */"
    print "#include \"strata/strata.h\"\n"
    print proof "_Static_assert(sizeof(void *) == 8, \"pointers\");\n"
    print "const char *strata_abi(void)\n{\n    return\n" text "        ;\n}"
}
