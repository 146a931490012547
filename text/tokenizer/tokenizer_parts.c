/* text/tokenizer/tokenizer_parts.c - tokenizer.json: normalizer, pre_tokenizer, post_processor and decoder.
 *
 * Each is null, one part, or a Sequence of parts (of Sequences).  A kind is a row of a table: its name, the fields that it has,
 * and the function that reads them. */
#include "text/tokenizer/fields_internal.h"
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8u /* of Sequences */

struct kind {
    const char *name, *fields;
    strata_status (*read)(struct st_tokenizer *t, const struct st_place *at);
};

static char *copy_text(const char *text)
{
    const size_t bytes = strlen(text);
    char *copy = st_tokenizer_alloc(bytes + 1, 1);

    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

static strata_status room(uint32_t count, const struct st_place *at)
{
    return count < ST_PARTS_MAX ? STRATA_OK : st_place_fault(at, NULL, "more than %u parts", ST_PARTS_MAX);
}

/* One character; E_INPUT. */
static strata_status read_character(char **out, size_t *bytes, const struct st_place *at, const char *key)
{
    const char *text;
    size_t length = 0;
    strata_status st = st_place_need_text(&text, at, key);

    if (st != STRATA_OK)
        return st;
    if (text[0] != '\0')
        (void)st_utf8_at(text, &length);
    if (length == 0 || strlen(text) != length)
        return st_place_fault(at, key, "must be one character");
    *bytes = length;
    *out = copy_text(text);
    return *out == NULL ? st_nomem(0) : STRATA_OK;
}

/* "pattern": {"String": "..."} or {"Regex": "..."}. */
static strata_status read_pattern(struct st_pattern *out, const struct st_place *at, bool may_be_regex)
{
    struct st_place pattern;
    const char *text = NULL, *regex = NULL;
    strata_status st = st_place_object(&pattern, at, "pattern");

    if (st != STRATA_OK)
        return st;
    if (pattern.node == NULL)
        return st_place_fault(at, "pattern", "is missing");
    if ((st = st_place_known(&pattern, "String Regex")) != STRATA_OK ||
        (st = st_place_text(&text, &pattern, "String")) != STRATA_OK ||
        (st = st_place_text(&regex, &pattern, "Regex")) != STRATA_OK)
        return st;
    if ((text == NULL) == (regex == NULL) || (text != NULL && text[0] == '\0'))
        return st_place_fault(&pattern, NULL, "must have a String that is not empty, or a Regex");
    if (regex != NULL && !may_be_regex)
        return st_place_fault(&pattern, "Regex", "not supported here");
    if ((out->text = copy_text(text != NULL ? text : regex)) == NULL)
        return st_nomem(0);
    out->bytes = strlen(out->text);
    return regex != NULL ? st_pattern_prepare(out, &pattern) : STRATA_OK;
}

static strata_status read_content(char **out, size_t *bytes, const struct st_place *at, const char *key)
{
    const char *text;
    strata_status st = st_place_need_text(&text, at, key);

    if (st != STRATA_OK)
        return st;
    *bytes = strlen(text);
    *out = copy_text(text);
    return *out == NULL ? st_nomem(0) : STRATA_OK;
}

static strata_status read_scheme(enum st_scheme *out, const struct st_place *at)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *name = names[0];
    bool prefix = true;
    strata_status st;

    if ((st = st_place_text(&name, at, "prepend_scheme")) != STRATA_OK ||
        (st = st_place_bool(&prefix, at, "add_prefix_space")) != STRATA_OK)
        return st;
    for (unsigned i = 0; i < 3; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum st_scheme)i;
            return prefix || *out == ST_SCHEME_NEVER
                       ? STRATA_OK
                       : st_place_fault(at, "add_prefix_space", "false contradicts prepend_scheme \"%s\"", name);
        }
    return st_place_fault(at, "prepend_scheme", "\"%.40s\": not supported", name);
}

/* Normalizers. */

static strata_status read_prepend(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_normal *n = &t->normals[t->normal_count++];

    n->kind = ST_NORMAL_PREPEND;
    return read_content(&n->content, &n->content_bytes, at, "prepend");
}

static strata_status read_replace(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_normal *n = &t->normals[t->normal_count++];
    strata_status st;

    n->kind = ST_NORMAL_REPLACE;
    if ((st = read_pattern(&n->pattern, at, true)) != STRATA_OK)
        return st;
    return read_content(&n->content, &n->content_bytes, at, "content");
}

static strata_status read_nfc(struct st_tokenizer *t, const struct st_place *at)
{
    (void)at;
    t->normals[t->normal_count++].kind = ST_NORMAL_NFC;
    return STRATA_OK;
}

static const struct kind normal_kinds[] = {
    {"Prepend", "type prepend", read_prepend},
    {"Replace", "type pattern content", read_replace},
    {"NFC", "type", read_nfc},
    {NULL, NULL, NULL},
};

/* Pre-tokenizers. */

static strata_status read_split(struct st_tokenizer *t, const struct st_place *at)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    struct st_pre *p = &t->pres[t->pre_count++];
    const char *name;
    strata_status st;

    p->kind = ST_PRE_SPLIT;
    if ((st = read_pattern(&p->pattern, at, true)) != STRATA_OK || (st = st_place_bool(&p->invert, at, "invert")) != STRATA_OK ||
        (st = st_place_need_text(&name, at, "behavior")) != STRATA_OK)
        return st;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0) {
            p->behavior = (enum st_behavior)i;
            return STRATA_OK;
        }
    return st_place_fault(at, "behavior", "\"%.40s\": not supported", name);
}

static strata_status read_digits(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_pre *p = &t->pres[t->pre_count++];
    bool individual = false;
    strata_status st = st_place_bool(&individual, at, "individual_digits");

    p->kind = ST_PRE_DIGITS;
    p->behavior = individual ? ST_ISOLATED : ST_CONTIGUOUS;
    return st;
}

static strata_status read_metaspace(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_pre *p = &t->pres[t->pre_count++];
    char *character;
    strata_status st = read_character(&character, &p->replacement_bytes, at, "replacement");

    if (st != STRATA_OK)
        return st;
    memcpy(p->replacement, character, p->replacement_bytes);
    free(character);
    p->kind = ST_PRE_METASPACE;
    p->cuts = true;
    if ((st = st_place_bool(&p->cuts, at, "split")) != STRATA_OK)
        return st;
    return read_scheme(&p->scheme, at);
}

static strata_status read_byte_level(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_pre *p = &t->pres[t->pre_count++];
    strata_status st;

    *p = (struct st_pre){.kind = ST_PRE_BYTE_LEVEL, .behavior = ST_ISOLATED, .add_prefix_space = true, .cuts = true};
    p->pattern.scan = ST_SCAN_GPT2;
    t->bpe.byte_level = true;
    if ((st = st_place_bool(&p->add_prefix_space, at, "add_prefix_space")) != STRATA_OK)
        return st;
    return st_place_bool(&p->cuts, at, "use_regex");
}

static const struct kind pre_kinds[] = {
    {"Split", "type pattern behavior invert", read_split},
    {"Digits", "type individual_digits", read_digits},
    {"Metaspace", "type replacement add_prefix_space prepend_scheme split str_rep", read_metaspace},
    {"ByteLevel", "type add_prefix_space trim_offsets use_regex", read_byte_level},
    {NULL, NULL, NULL},
};

/* Decoders. */

static strata_status decode_byte_level(struct st_tokenizer *t, const struct st_place *at)
{
    (void)at;
    t->decodes[t->decode_count++].kind = ST_DECODE_BYTE_LEVEL;
    return STRATA_OK;
}

static strata_status decode_byte_fallback(struct st_tokenizer *t, const struct st_place *at)
{
    (void)at;
    t->decodes[t->decode_count++].kind = ST_DECODE_BYTE_FALLBACK;
    return STRATA_OK;
}

static strata_status decode_fuse(struct st_tokenizer *t, const struct st_place *at)
{
    (void)at;
    t->decodes[t->decode_count++].kind = ST_DECODE_FUSE;
    return STRATA_OK;
}

static strata_status decode_strip(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_decode_step *d = &t->decodes[t->decode_count++];
    strata_status st;

    d->kind = ST_DECODE_STRIP;
    if ((st = read_character(&d->pattern, &d->pattern_bytes, at, "content")) != STRATA_OK ||
        (st = st_place_number(&d->start, at, "start", UINT16_MAX)) != STRATA_OK)
        return st;
    return st_place_number(&d->stop, at, "stop", UINT16_MAX);
}

static strata_status decode_replace(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_decode_step *d = &t->decodes[t->decode_count++];
    struct st_pattern pattern = {0};
    strata_status st = read_pattern(&pattern, at, false);

    d->kind = ST_DECODE_REPLACE;
    d->pattern = pattern.text;
    d->pattern_bytes = pattern.bytes;
    return st == STRATA_OK ? read_content(&d->content, &d->content_bytes, at, "content") : st;
}

static strata_status decode_metaspace(struct st_tokenizer *t, const struct st_place *at)
{
    struct st_decode_step *d = &t->decodes[t->decode_count++];
    strata_status st = read_character(&d->pattern, &d->pattern_bytes, at, "replacement");

    d->kind = ST_DECODE_METASPACE;
    return st == STRATA_OK ? read_scheme(&d->scheme, at) : st;
}

static const struct kind decode_kinds[] = {
    {"ByteLevel", "type add_prefix_space trim_offsets use_regex", decode_byte_level},
    {"ByteFallback", "type", decode_byte_fallback},
    {"Fuse", "type", decode_fuse},
    {"Strip", "type content start stop", decode_strip},
    {"Replace", "type pattern content", decode_replace},
    {"Metaspace", "type replacement add_prefix_space prepend_scheme split str_rep", decode_metaspace},
    {NULL, NULL, NULL},
};

/* Post-processors: what ByteLevel does there concerns only offsets. */

static strata_status post_byte_level(struct st_tokenizer *t, const struct st_place *at)
{
    (void)t;
    (void)at;
    return STRATA_OK;
}

/* The ids that a name in a template stands for, appended to one of the two lists. */
static strata_status put_special(uint32_t ids[ST_PARTS_MAX], uint32_t *count, const struct st_place *at,
                                 const struct st_place *piece)
{
    struct st_place table, special;
    const st_json *first;
    const char *name;
    strata_status st;

    if ((st = st_place_need_text(&name, piece, "id")) != STRATA_OK ||
        (st = st_place_object(&table, at, "special_tokens")) != STRATA_OK)
        return st;
    if (table.node == NULL || (st = st_place_object(&special, &table, name)) != STRATA_OK || special.node == NULL)
        return st_place_fault(piece, "id", "special_tokens has no \"%.40s\"", name);
    if ((st = st_place_array(&first, &special, "ids")) != STRATA_OK)
        return st;
    for (const st_json *node = first; node != NULL; node = st_json_next(node)) {
        uint64_t id;

        if ((st = room(*count, at)) != STRATA_OK)
            return st;
        if (!st_json_u64(node, &id) || id >= ST_TOKENIZER_VOCAB_MAX)
            return st_place_fault(&special, "ids", "must be whole numbers below %u", ST_TOKENIZER_VOCAB_MAX);
        ids[(*count)++] = (uint32_t)id;
    }
    return STRATA_OK;
}

/* TemplateProcessing's "single"; "pair" is for two texts, which do not occur here. */
static strata_status post_template(struct st_tokenizer *t, const struct st_place *at)
{
    const st_json *first;
    struct st_place element, piece;
    uint32_t index = 0, texts = 0;
    strata_status st = st_place_array(&first, at, "single");

    for (const st_json *node = first; node != NULL; node = st_json_next(node)) {
        if ((st = st_place_element(&element, at, "single", node, index++)) != STRATA_OK ||
            (st = st_place_known(&element, "SpecialToken Sequence")) != STRATA_OK ||
            (st = st_place_object(&piece, &element, "SpecialToken")) != STRATA_OK)
            return st;
        if (piece.node == NULL)
            texts++;
        else if ((st = texts == 0 ? put_special(t->prefix, &t->prefix_count, at, &piece)
                                  : put_special(t->suffix, &t->suffix_count, at, &piece)) != STRATA_OK)
            return st;
    }
    return st == STRATA_OK && texts != 1 ? st_place_fault(at, "single", "must have the text once") : st;
}

static const struct kind post_kinds[] = {
    {"ByteLevel", "type add_prefix_space trim_offsets use_regex", post_byte_level},
    {"TemplateProcessing", "type single pair special_tokens", post_template},
    {NULL, NULL, NULL},
};

/* A part of one kind, or a Sequence. */
static strata_status read_part(struct st_tokenizer *t, const struct st_place *at, const struct kind *kinds, const char *list,
                               uint32_t depth)
{
    struct st_place part;
    const st_json *first;
    const char *type;
    uint32_t index = 0;
    strata_status st = st_place_need_text(&type, at, "type");

    if (st != STRATA_OK)
        return st;
    for (const struct kind *kind = kinds; kind->name != NULL; kind++)
        if (strcmp(kind->name, type) == 0) {
            if ((st = st_place_known(at, kind->fields)) != STRATA_OK || (st = room(t->normal_count, at)) != STRATA_OK ||
                (st = room(t->pre_count, at)) != STRATA_OK || (st = room(t->decode_count, at)) != STRATA_OK)
                return st;
            return kind->read(t, at);
        }
    if (strcmp(type, "Sequence") != 0)
        return st_place_fault(at, "type", "\"%.40s\": not supported", type);
    if (depth == DEPTH_MAX)
        return st_place_fault(at, NULL, "Sequences are nested deeper than %u", DEPTH_MAX);
    if ((st = st_place_array(&first, at, list)) != STRATA_OK)
        return st;
    for (const st_json *node = first; node != NULL && st == STRATA_OK; node = st_json_next(node)) {
        st = st_place_element(&part, at, list, node, index++);
        if (st == STRATA_OK)
            st = read_part(t, &part, kinds, list, depth + 1);
    }
    return st;
}

/* ByteLevel turns text into bytes: what comes after it would see other characters than here. */
static strata_status check_order(const struct st_tokenizer *t, const struct st_place *root)
{
    for (uint32_t i = 0; i + 1 < t->pre_count; i++)
        if (t->pres[i].kind == ST_PRE_BYTE_LEVEL)
            return st_place_fault(root, "pre_tokenizer", "ByteLevel must be the last part");
    return STRATA_OK;
}

/* Bytes, and texts of several characters, are looked for in whole tokens: what makes one text of all comes after. */
static strata_status check_decoders(const struct st_tokenizer *t, const struct st_place *root)
{
    bool joined = false;

    for (uint32_t i = 0; i < t->decode_count; i++) {
        const struct st_decode_step *d = &t->decodes[i];

        if (joined && (d->kind == ST_DECODE_BYTE_LEVEL || d->kind == ST_DECODE_BYTE_FALLBACK ||
                       (d->kind == ST_DECODE_REPLACE && d->pattern_bytes > 1)))
            return st_place_fault(root, "decoder", "%s must come before Fuse and ByteLevel",
                                  d->kind == ST_DECODE_REPLACE      ? "Replace"
                                  : d->kind == ST_DECODE_BYTE_LEVEL ? "ByteLevel"
                                                                    : "ByteFallback");
        joined = joined || d->kind == ST_DECODE_BYTE_LEVEL || d->kind == ST_DECODE_FUSE;
    }
    return STRATA_OK;
}

strata_status st_tokenizer_read_parts(struct st_tokenizer *t, const struct st_place *root)
{
    const struct {
        const char *key, *list;
        const struct kind *kinds;
    } parts[] = {
        {"normalizer", "normalizers", normal_kinds},
        {"pre_tokenizer", "pretokenizers", pre_kinds},
        {"post_processor", "processors", post_kinds},
        {"decoder", "decoders", decode_kinds},
    };
    struct st_place at;
    strata_status st;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if ((st = st_place_object(&at, root, parts[i].key)) != STRATA_OK)
            return st;
        if (at.node != NULL && (st = read_part(t, &at, parts[i].kinds, parts[i].list, 0)) != STRATA_OK)
            return st;
        t->has_decoder = at.node != NULL; /* the last one */
    }
    if ((st = check_order(t, root)) != STRATA_OK)
        return st;
    return check_decoders(t, root);
}
