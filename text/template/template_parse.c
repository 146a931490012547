/* template_parse.c - opens a template: its statements as nodes.  Expressions: template_parse_expr.c. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX   100u
#define PARSE_BYTES ((size_t)256 << 20) /* nodes of the longest template */

/* --- arena --- */

struct st_arena_block {
    struct st_arena_block *before;
    size_t used, bytes;
};

enum { BLOCK_HEAD = 32, BLOCK_BYTES = 64 << 10 };
static_assert(sizeof(struct st_arena_block) <= BLOCK_HEAD, "a block's head is as long as its record");

void *st_arena_get(struct st_arena *a, size_t bytes)
{
    struct st_arena_block *b = a->last;
    unsigned char *got;

    if (bytes > a->limit || a->used + bytes > a->limit)
        return NULL;
    bytes = (bytes + 15) / 16 * 16;
    if (b == NULL || b->bytes - b->used < bytes) {
        const size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;

        b = st_fault("template.alloc", 0) < 0 ? NULL : malloc(BLOCK_HEAD + size);
        if (b == NULL)
            return NULL;
        *b = (struct st_arena_block){.before = a->last, .bytes = size};
        a->last = b;
    }
    got = (unsigned char *)b + BLOCK_HEAD + b->used;
    b->used += bytes;
    a->used += bytes;
    memset(got, 0, bytes);
    return got;
}

void st_arena_free(struct st_arena *a)
{
    while (a->last != NULL) {
        struct st_arena_block *b = a->last;

        a->last = b->before;
        free(b);
    }
    a->used = 0;
}

/* --- tokens --- */

void st_parse_fail(struct st_parse *p, uint32_t line, const char *fmt, ...)
{
    char text[512];
    va_list args;

    if (p->status != STRATA_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    p->status = st_error(STRATA_E_CONFIG, "%s, line %u: %s", p->t->name, line, text);
}

void *st_parse_get(struct st_parse *p, size_t bytes)
{
    void *got = p->status == STRATA_OK ? st_arena_get(&p->t->arena, bytes) : NULL;

    if (got == NULL && p->status == STRATA_OK)
        p->status = st_nomem(0);
    return got;
}

const struct st_tok *st_parse_peek(struct st_parse *p)
{
    return p->status == STRATA_OK ? &p->toks[p->at] : &p->toks[p->count - 1];
}

const struct st_tok *st_parse_next(struct st_parse *p)
{
    const struct st_tok *k = st_parse_peek(p);

    if (p->at + 1 < p->count)
        p->at++;
    return k;
}

bool st_tok_is(const struct st_tok *k, enum st_token_kind kind, const char *text)
{
    return k->kind == kind && (text == NULL || (k->bytes == strlen(text) && memcmp(k->text, text, k->bytes) == 0));
}

bool st_parse_skip(struct st_parse *p, enum st_token_kind kind, const char *text)
{
    if (!st_tok_is(st_parse_peek(p), kind, text))
        return false;
    st_parse_next(p);
    return true;
}

void st_parse_expect(struct st_parse *p, enum st_token_kind kind, const char *text)
{
    const struct st_tok *k = st_parse_peek(p);

    if (!st_parse_skip(p, kind, text))
        st_parse_fail(p, k->line, "%s is expected before '%.*s'",
                      text != NULL        ? text
                      : kind == TOK_CLOSE ? "the tag's end"
                                          : "a name",
                      (int)(k->bytes < 40 ? k->bytes : 40), k->text);
}

char *st_parse_copy(struct st_parse *p, const char *text, size_t bytes)
{
    char *copy = st_parse_get(p, bytes + 1);

    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

struct st_node *st_parse_node(struct st_parse *p, enum st_node_kind kind, uint32_t line)
{
    struct st_node *n = st_parse_get(p, sizeof(*n));

    if (n == NULL) {
        p->dummy = (struct st_node){0};
        return &p->dummy;
    }
    n->kind = kind;
    n->line = line;
    return n;
}

bool st_parse_enter(struct st_parse *p)
{
    if (p->depth >= DEPTH_MAX)
        st_parse_fail(p, st_parse_peek(p)->line, "more than %u levels of nesting", DEPTH_MAX);
    p->depth++;
    return p->status == STRATA_OK;
}

void st_parse_leave(struct st_parse *p)
{
    p->depth--;
}

/* --- statements --- */

/* The words that end a body; NULL at the end. */
#define ENDS_MAX 4
static struct st_node *parse_body(struct st_parse *p, const char *const ends[ENDS_MAX]);

static bool at_end_word(struct st_parse *p, const char *const ends[ENDS_MAX])
{
    const struct st_tok *k = &p->toks[p->at + 1];

    for (uint32_t i = 0; i < ENDS_MAX && ends[i] != NULL; i++)
        if (st_tok_is(k, TOK_NAME, ends[i]))
            return true;
    return false;
}

/* {% WORD %} */
static void end_tag(struct st_parse *p, const char *word)
{
    st_parse_expect(p, TOK_TAG, NULL);
    st_parse_expect(p, TOK_NAME, word);
    st_parse_expect(p, TOK_CLOSE, NULL);
}

/* One condition and its body, after `if` or `elif`. */
static struct st_node *parse_condition(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"elif", "else", "endif"};
    struct st_node *n = st_parse_node(p, NODE_IF, line);

    n->a = st_parse_expression(p, true, true);
    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = parse_body(p, ends);
    st_parse_expect(p, TOK_TAG, NULL);
    return n;
}

static struct st_node *parse_if(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"endif"};
    struct st_node *first = parse_condition(p, line), *n = first;

    while (p->status == STRATA_OK && st_parse_skip(p, TOK_NAME, "elif"))
        n = n->other = parse_condition(p, st_parse_peek(p)->line);
    if (st_parse_skip(p, TOK_NAME, "else")) {
        st_parse_expect(p, TOK_CLOSE, NULL);
        n->other = parse_body(p, ends);
        st_parse_expect(p, TOK_TAG, NULL);
    }
    st_parse_expect(p, TOK_NAME, "endif");
    st_parse_expect(p, TOK_CLOSE, NULL);
    return first;
}

static struct st_node *parse_for(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"else", "endfor"};
    static const char *const last[ENDS_MAX] = {"endfor"};
    struct st_node *n = st_parse_node(p, NODE_FOR, line);

    n->target = st_parse_target(p, false);
    st_parse_expect(p, TOK_NAME, "in");
    n->a = st_parse_expression(p, true, false);
    if (st_parse_skip(p, TOK_NAME, "if"))
        n->b = st_parse_expression(p, false, true);
    if (st_tok_is(st_parse_peek(p), TOK_NAME, "recursive"))
        st_parse_fail(p, line, "a recursive loop is not supported");
    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = parse_body(p, ends);
    st_parse_expect(p, TOK_TAG, NULL);
    if (st_parse_skip(p, TOK_NAME, "else")) {
        st_parse_expect(p, TOK_CLOSE, NULL);
        n->other = parse_body(p, last);
        st_parse_expect(p, TOK_TAG, NULL);
    }
    st_parse_expect(p, TOK_NAME, "endfor");
    st_parse_expect(p, TOK_CLOSE, NULL);
    return n;
}

static struct st_node *parse_set(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"endset"};
    struct st_node *n = st_parse_node(p, NODE_SET, line);

    n->target = st_parse_target(p, true);
    if (st_parse_skip(p, TOK_SIGN, "=")) {
        n->a = st_parse_expression(p, true, true);
        st_parse_expect(p, TOK_CLOSE, NULL);
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    n->a = st_parse_filters(p, NULL, false);
    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = parse_body(p, ends);
    end_tag(p, "endset");
    return n;
}

static struct st_node *parse_macro(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"endmacro"};
    struct st_node *n = st_parse_node(p, NODE_MACRO, line), **last = &n->first;
    const struct st_tok *k = st_parse_peek(p);

    st_parse_expect(p, TOK_NAME, NULL);
    n->text = st_parse_copy(p, k->text, k->bytes);
    st_parse_expect(p, TOK_SIGN, "(");
    while (p->status == STRATA_OK && !st_parse_skip(p, TOK_SIGN, ")")) {
        struct st_node *parameter = st_parse_node(p, NODE_ARGUMENT, line);

        if (n->first != NULL) {
            st_parse_expect(p, TOK_SIGN, ",");
            if (st_parse_skip(p, TOK_SIGN, ")"))
                break;
        }
        k = st_parse_peek(p);
        st_parse_expect(p, TOK_NAME, NULL);
        parameter->text = st_parse_copy(p, k->text, k->bytes);
        if (st_parse_skip(p, TOK_SIGN, "="))
            parameter->a = st_parse_expression(p, false, true);
        *last = parameter;
        last = &parameter->next;
    }
    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = parse_body(p, ends);
    end_tag(p, "endmacro");
    return n;
}

/* Its body is a macro without parameters, which the one that is called has as caller(). */
static struct st_node *parse_call(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"endcall"};
    struct st_node *n = st_parse_node(p, NODE_CALL_BLOCK, line);

    n->a = st_parse_expression(p, false, true);
    if (p->status == STRATA_OK && n->a->kind != NODE_CALL)
        st_parse_fail(p, line, "{%% call %%} must call a macro");
    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = st_parse_node(p, NODE_MACRO, line);
    n->body->text = "caller";
    n->body->body = parse_body(p, ends);
    end_tag(p, "endcall");
    return n;
}

static struct st_node *parse_generation(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"endgeneration"};
    struct st_node *n = st_parse_node(p, NODE_GENERATION, line);

    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = parse_body(p, ends);
    end_tag(p, "endgeneration");
    p->t->has_generation = true;
    return n;
}

static struct st_node *parse_filter_block(struct st_parse *p, uint32_t line)
{
    static const char *const ends[ENDS_MAX] = {"endfilter"};
    struct st_node *n = st_parse_node(p, NODE_FILTER_BLOCK, line);

    n->a = st_parse_filters(p, NULL, true);
    st_parse_expect(p, TOK_CLOSE, NULL);
    n->body = parse_body(p, ends);
    end_tag(p, "endfilter");
    return n;
}

static struct st_node *parse_simple(struct st_parse *p, uint32_t line, enum st_node_kind kind)
{
    st_parse_expect(p, TOK_CLOSE, NULL);
    return st_parse_node(p, kind, line);
}

/* {% ... %}, after its start. */
static struct st_node *parse_tag(struct st_parse *p)
{
    const struct st_tok *k = st_parse_next(p);

    if (st_tok_is(k, TOK_NAME, "if"))
        return parse_if(p, k->line);
    if (st_tok_is(k, TOK_NAME, "for"))
        return parse_for(p, k->line);
    if (st_tok_is(k, TOK_NAME, "set"))
        return parse_set(p, k->line);
    if (st_tok_is(k, TOK_NAME, "macro"))
        return parse_macro(p, k->line);
    if (st_tok_is(k, TOK_NAME, "call"))
        return parse_call(p, k->line);
    if (st_tok_is(k, TOK_NAME, "generation"))
        return parse_generation(p, k->line);
    if (st_tok_is(k, TOK_NAME, "filter"))
        return parse_filter_block(p, k->line);
    if (st_tok_is(k, TOK_NAME, "break"))
        return parse_simple(p, k->line, NODE_BREAK);
    if (st_tok_is(k, TOK_NAME, "continue"))
        return parse_simple(p, k->line, NODE_CONTINUE);
    st_parse_fail(p, k->line, "the tag '%.*s' is not supported here", (int)(k->bytes < 40 ? k->bytes : 40), k->text);
    return st_parse_node(p, NODE_DATA, k->line);
}

static struct st_node *parse_statement(struct st_parse *p)
{
    const struct st_tok *k = st_parse_next(p);
    struct st_node *n;

    if (k->kind == TOK_TAG)
        return parse_tag(p);
    n = st_parse_node(p, k->kind == TOK_DATA ? NODE_DATA : NODE_PRINT, k->line);
    n->text = k->text;
    n->bytes = k->bytes;
    if (k->kind == TOK_DATA)
        return n;
    n->a = st_parse_expression(p, true, true);
    st_parse_expect(p, TOK_CLOSE, NULL);
    return n;
}

static struct st_node *parse_body(struct st_parse *p, const char *const ends[ENDS_MAX])
{
    struct st_node *first = NULL, **last = &first;

    if (!st_parse_enter(p))
        return NULL;
    while (p->status == STRATA_OK) {
        const struct st_tok *k = st_parse_peek(p);

        if (k->kind == TOK_END || (k->kind == TOK_TAG && at_end_word(p, ends)))
            break;
        *last = parse_statement(p);
        last = &(*last)->next;
    }
    if (p->status == STRATA_OK && ends[0] != NULL && st_parse_peek(p)->kind == TOK_END)
        st_parse_fail(p, st_parse_peek(p)->line, "the text ends before %s", ends[0]);
    st_parse_leave(p);
    return first;
}

/* --- the template --- */

/* Newlines of all kinds become \n, and one at the end goes. */
static strata_status normalise(struct st_parse *p, const char *text, size_t bytes)
{
    char *out = st_arena_get(&p->t->arena, bytes + 1);

    if (out == NULL)
        return st_nomem(0);
    p->text = out;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        *out++ = text[i] == '\r' ? '\n' : text[i];
    }
    if (out > p->text && out[-1] == '\n')
        *--out = '\0';
    p->end = out;
    return STRATA_OK;
}

static strata_status parse(struct st_template *t, const char *text, size_t bytes)
{
    static const char *const none[ENDS_MAX] = {NULL};
    struct st_parse p = {.t = t};
    strata_status st = normalise(&p, text, bytes);

    if (st != STRATA_OK)
        return st;
    st_template_lex(&p);
    if (p.status == STRATA_OK)
        t->body = parse_body(&p, none);
    free(p.toks);
    return p.status;
}

static strata_status check_text(const char *text, size_t bytes, const char *name)
{
    if (bytes > ST_TEMPLATE_BYTES_MAX)
        return st_error(STRATA_E_CONFIG, "%s: a template of %zu bytes; at most %u are read", name, bytes, ST_TEMPLATE_BYTES_MAX);
    if (memchr(text, '\0', bytes) != NULL)
        return st_error(STRATA_E_CONFIG, "%s: a template that holds a NUL byte", name);
    for (size_t at = 0; at < bytes;) {
        const size_t unit = st_text_utf8_bytes(text + at, bytes - at);

        if (unit == 0)
            return st_error(STRATA_E_CONFIG, "%s: byte %zu of the template is not UTF-8", name, at);
        at += unit;
    }
    return STRATA_OK;
}

strata_status st_template_open(struct st_template **out, const char *text, size_t bytes, const char *name)
{
    struct st_template *t;
    strata_status st = check_text(text, bytes, name);

    if (st != STRATA_OK)
        return st;
    t = st_fault("template.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*t));
    if (t == NULL || (t->name = st_fault("template.alloc", 0) < 0 ? NULL : strdup(name)) == NULL) {
        free(t);
        return st_nomem(0);
    }
    t->arena.limit = PARSE_BYTES;
    st = parse(t, text, bytes);
    if (st != STRATA_OK) {
        st_template_close(t);
        return st;
    }
    *out = t;
    return STRATA_OK;
}

void st_template_close(struct st_template *t)
{
    if (t == NULL)
        return;
    st_arena_free(&t->arena);
    free(t->name);
    free(t);
}
