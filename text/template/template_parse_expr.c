/* template_parse_expr.c - expressions as nodes, in Jinja's order: `a if b else c`, or, and, not, comparisons, + and -, ~, * / and
 * %, signs, and then what follows a value: .name [item] (call) |filter `is` test. */
#include "text/template/template_internal.h"

#include <string.h>

static struct st_node *parse_or(struct st_parse *p);
static struct st_node *parse_unary(struct st_parse *p, bool with_filter);

static char *copy_token(struct st_parse *p, const struct st_tok *k)
{
    return st_parse_copy(p, k->text, k->bytes);
}

static struct st_node *join(struct st_parse *p, enum st_node_kind kind, uint32_t line, struct st_node *a, struct st_node *b)
{
    struct st_node *n = st_parse_node(p, kind, line);

    n->a = a;
    n->b = b;
    return n;
}

/* --- values --- */

static struct st_node *constant(struct st_parse *p, uint32_t line, struct st_value value)
{
    struct st_node *n = st_parse_node(p, NODE_CONST, line);

    n->value = value;
    return n;
}

/* One or more strings in a row are one. */
static struct st_node *parse_string(struct st_parse *p)
{
    const struct st_tok *first = st_parse_peek(p);
    struct st_string *s = st_parse_get(p, sizeof(*s));
    size_t bytes = 0;
    uint32_t count = 0;
    char *text;

    while (first[count].kind == TOK_STRING)
        bytes += first[count++].bytes;
    text = st_parse_get(p, bytes + 1);
    if (s == NULL || text == NULL)
        return constant(p, first->line, st_val_none());
    *s = (struct st_string){.text = text, .bytes = bytes};
    for (uint32_t i = 0; i < count; i++) {
        const struct st_tok *k = st_parse_next(p);

        memcpy(text, k->text, k->bytes);
        text += k->bytes;
    }
    return constant(p, first->line, (struct st_value){.kind = VAL_STRING, .as.string = s});
}

/* Items up to `close`; a trailing comma is allowed. */
static void parse_items(struct st_parse *p, struct st_node *n, const char *close, bool pairs)
{
    struct st_node **last = &n->first;

    while (p->status == STRATA_OK && !st_parse_skip(p, TOK_SIGN, close)) {
        if (n->first != NULL) {
            st_parse_expect(p, TOK_SIGN, ",");
            if (st_parse_skip(p, TOK_SIGN, close))
                return;
        }
        *last = st_parse_expression(p, false, true);
        last = &(*last)->next;
        if (!pairs)
            continue;
        st_parse_expect(p, TOK_SIGN, ":");
        *last = st_parse_expression(p, false, true);
        last = &(*last)->next;
    }
}

static struct st_node *parse_name(struct st_parse *p)
{
    static const struct {
        const char *name;
        struct st_value value;
    } words[] = {
        {"true", {.kind = VAL_BOOL, .as.truth = true}},
        {"True", {.kind = VAL_BOOL, .as.truth = true}},
        {"false", {.kind = VAL_BOOL, .as.truth = false}},
        {"False", {.kind = VAL_BOOL, .as.truth = false}},
        {"none", {.kind = VAL_NONE}},
        {"None", {.kind = VAL_NONE}},
    };
    const struct st_tok *k = st_parse_next(p);
    struct st_node *n;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (st_tok_is(k, TOK_NAME, words[i].name))
            return constant(p, k->line, words[i].value);
    n = st_parse_node(p, NODE_NAME, k->line);
    n->text = copy_token(p, k);
    return n;
}

static struct st_node *parse_primary(struct st_parse *p)
{
    const struct st_tok *k = st_parse_peek(p);
    struct st_node *n;

    if (k->kind == TOK_NAME)
        return parse_name(p);
    if (k->kind == TOK_STRING)
        return parse_string(p);
    if (k->kind == TOK_INT || k->kind == TOK_FLOAT) {
        st_parse_next(p);
        return constant(p, k->line, k->kind == TOK_INT ? st_val_int(k->integer) : st_val_float(k->real));
    }
    if (st_parse_skip(p, TOK_SIGN, "(")) {
        if (st_parse_skip(p, TOK_SIGN, ")"))
            return st_parse_node(p, NODE_TUPLE, k->line);
        n = st_parse_expression(p, true, true);
        st_parse_expect(p, TOK_SIGN, ")");
        return n;
    }
    n = st_parse_node(p, NODE_LIST, k->line);
    if (st_parse_skip(p, TOK_SIGN, "[")) {
        parse_items(p, n, "]", false);
    } else if (st_parse_skip(p, TOK_SIGN, "{")) {
        n->kind = NODE_DICT;
        parse_items(p, n, "}", true);
    } else {
        st_parse_fail(p, k->line, "a value is expected before '%.*s'", (int)(k->bytes < 40 ? k->bytes : 40), k->text);
    }
    return n;
}

/* --- what follows a value --- */

/* [index] or [start:stop:step], after the bracket. */
static struct st_node *parse_subscript(struct st_parse *p, struct st_node *of, uint32_t line)
{
    struct st_node *parts[3] = {NULL, NULL, NULL}, *n;
    uint32_t part = 0;

    for (; p->status == STRATA_OK && !st_tok_is(st_parse_peek(p), TOK_SIGN, "]");) {
        if (st_parse_skip(p, TOK_SIGN, ":")) {
            if (++part > 2)
                st_parse_fail(p, line, "a slice has at most three parts");
            part = part > 2 ? 2 : part;
        } else {
            if (parts[part] != NULL)
                st_parse_fail(p, line, "] is expected after the index");
            parts[part] = st_parse_expression(p, false, true);
        }
    }
    st_parse_expect(p, TOK_SIGN, "]");
    if (part == 0) {
        if (parts[0] == NULL)
            st_parse_fail(p, line, "an index is expected between [ and ]");
        return join(p, NODE_ITEM, line, of, parts[0]);
    }
    for (uint32_t i = 0; i < 3; i++)
        if (parts[i] == NULL)
            parts[i] = constant(p, line, st_val_none());
    n = join(p, NODE_SLICE, line, of, NULL);
    n->first = parts[0];
    parts[0]->next = parts[1];
    parts[1]->next = parts[2];
    return n;
}

/* Arguments, after the parenthesis: values, *values, then NAME=value. */
static struct st_node *parse_arguments(struct st_parse *p)
{
    struct st_node *first = NULL, **last = &first;
    bool named = false;

    while (p->status == STRATA_OK && !st_parse_skip(p, TOK_SIGN, ")")) {
        const struct st_tok *k;

        if (first != NULL) {
            st_parse_expect(p, TOK_SIGN, ",");
            if (st_parse_skip(p, TOK_SIGN, ")"))
                break;
        }
        k = st_parse_peek(p);
        if (k->kind == TOK_NAME && st_tok_is(k + 1, TOK_SIGN, "=")) {
            struct st_node *n = st_parse_node(p, NODE_ARGUMENT, k->line);

            n->text = copy_token(p, k);
            st_parse_next(p);
            st_parse_next(p);
            n->a = st_parse_expression(p, false, true);
            *last = n;
            named = true;
        } else {
            const bool spread = st_parse_skip(p, TOK_SIGN, "*");

            if (named)
                st_parse_fail(p, k->line, "an argument without a name after one with a name");
            *last = st_parse_expression(p, false, true);
            if (spread)
                *last = join(p, NODE_SPREAD, k->line, *last, NULL);
            named = named || spread;
        }
        last = &(*last)->next;
    }
    return first;
}

static struct st_node *parse_postfix(struct st_parse *p, struct st_node *of)
{
    while (p->status == STRATA_OK) {
        const struct st_tok *k = st_parse_peek(p);
        struct st_node *n;

        if (st_parse_skip(p, TOK_SIGN, ".")) {
            const struct st_tok *name = st_parse_next(p);

            n = join(p, name->kind == TOK_INT ? NODE_ITEM : NODE_ATTRIBUTE, k->line, of, NULL);
            if (name->kind == TOK_INT)
                n->b = constant(p, k->line, st_val_int(name->integer));
            else if (name->kind == TOK_NAME)
                n->text = copy_token(p, name);
            else
                st_parse_fail(p, k->line, "a name is expected after the point");
            of = n;
        } else if (st_parse_skip(p, TOK_SIGN, "[")) {
            of = parse_subscript(p, of, k->line);
        } else if (st_parse_skip(p, TOK_SIGN, "(")) {
            n = join(p, NODE_CALL, k->line, of, NULL);
            n->first = parse_arguments(p);
            of = n;
        } else {
            break;
        }
    }
    return of;
}

struct st_node *st_parse_filters(struct st_parse *p, struct st_node *of, bool first)
{
    while (p->status == STRATA_OK && (first || st_parse_skip(p, TOK_SIGN, "|"))) {
        const struct st_tok *k = st_parse_next(p);
        struct st_node *n = join(p, NODE_FILTER, k->line, of, NULL);

        first = false;
        if (k->kind != TOK_NAME)
            st_parse_fail(p, k->line, "the name of a filter is expected");
        n->text = copy_token(p, k);
        if (st_parse_skip(p, TOK_SIGN, "("))
            n->first = parse_arguments(p);
        of = n;
    }
    return of;
}

/* Whether a test's argument without parentheses can begin here. */
static bool begins_argument(const struct st_tok *k)
{
    if (k->kind == TOK_NAME)
        return !st_tok_is(k, TOK_NAME, "else") && !st_tok_is(k, TOK_NAME, "or") && !st_tok_is(k, TOK_NAME, "and") &&
               !st_tok_is(k, TOK_NAME, "is") && !st_tok_is(k, TOK_NAME, "if");
    return k->kind == TOK_STRING || k->kind == TOK_INT || k->kind == TOK_FLOAT || st_tok_is(k, TOK_SIGN, "[") ||
           st_tok_is(k, TOK_SIGN, "{");
}

static struct st_node *parse_test(struct st_parse *p, struct st_node *of, uint32_t line)
{
    const bool negated = st_parse_skip(p, TOK_NAME, "not");
    const struct st_tok *k = st_parse_next(p);
    struct st_node *n = join(p, NODE_TEST, line, of, NULL);

    if (k->kind != TOK_NAME)
        st_parse_fail(p, line, "the name of a test is expected after `is`");
    n->text = copy_token(p, k);
    if (st_parse_skip(p, TOK_SIGN, "("))
        n->first = parse_arguments(p);
    else if (begins_argument(st_parse_peek(p)))
        n->first = parse_postfix(p, parse_primary(p));
    return negated ? join(p, NODE_NOT, line, n, NULL) : n;
}

static struct st_node *parse_suffixes(struct st_parse *p, struct st_node *of)
{
    while (p->status == STRATA_OK) {
        const struct st_tok *k = st_parse_peek(p);

        if (st_tok_is(k, TOK_SIGN, "|")) {
            of = st_parse_filters(p, of, false);
        } else if (st_parse_skip(p, TOK_NAME, "is")) {
            of = parse_test(p, of, k->line);
        } else if (st_parse_skip(p, TOK_SIGN, "(")) {
            of = join(p, NODE_CALL, k->line, of, NULL);
            of->first = parse_arguments(p);
        } else {
            break;
        }
    }
    return of;
}

/* --- operators --- */

static struct st_node *parse_unary(struct st_parse *p, bool with_filter)
{
    const struct st_tok *k = st_parse_peek(p);
    struct st_node *n;

    if (!st_parse_enter(p))
        return st_parse_node(p, NODE_CONST, k->line);
    if (st_parse_skip(p, TOK_SIGN, "-"))
        n = join(p, NODE_NEGATE, k->line, parse_unary(p, false), NULL);
    else if (st_parse_skip(p, TOK_SIGN, "+"))
        n = join(p, NODE_POSITIVE, k->line, parse_unary(p, false), NULL);
    else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    if (with_filter)
        n = parse_suffixes(p, n);
    st_parse_leave(p);
    return n;
}

/* One level of operators that group from the left: the signs of one precedence over operands of the next. */
static const struct {
    struct {
        const char *text;
        enum st_sign sign;
    } signs[4];
} levels[] = {
    {{{"+", SIGN_ADD}, {"-", SIGN_SUB}}},
    {{{"~", SIGN_CONCAT}}},
    {{{"*", SIGN_MUL}, {"/", SIGN_DIV}, {"%", SIGN_MOD}}},
};

static struct st_node *parse_level(struct st_parse *p, uint32_t level)
{
    struct st_node *n;
    bool more = true;

    if (level == sizeof(levels) / sizeof(levels[0]))
        return parse_unary(p, true);
    n = parse_level(p, level + 1);
    while (more && p->status == STRATA_OK) {
        const struct st_tok *k = st_parse_peek(p);

        more = false;
        for (uint32_t i = 0; i < 4 && levels[level].signs[i].text != NULL && !more; i++) {
            if (!st_parse_skip(p, TOK_SIGN, levels[level].signs[i].text))
                continue;
            n = join(p, NODE_BINARY, k->line, n, NULL);
            n->sign = levels[level].signs[i].sign;
            n->b = parse_level(p, level + 1);
            more = true;
        }
    }
    return n;
}

/* Take a comparison sign, if one is next. */
static bool take_comparison(struct st_parse *p, enum st_sign *sign)
{
    static const struct {
        const char *text;
        enum st_sign sign;
    } signs[] = {{"==", SIGN_EQ}, {"!=", SIGN_NE}, {"<", SIGN_LT}, {"<=", SIGN_LE}, {">", SIGN_GT}, {">=", SIGN_GE}};
    const struct st_tok *k = st_parse_peek(p);

    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++) {
        if (st_parse_skip(p, TOK_SIGN, signs[i].text)) {
            *sign = signs[i].sign;
            return true;
        }
    }
    if (st_parse_skip(p, TOK_NAME, "in")) {
        *sign = SIGN_IN;
        return true;
    }
    if (!st_tok_is(k, TOK_NAME, "not") || !st_tok_is(k + 1, TOK_NAME, "in"))
        return false;
    st_parse_next(p);
    st_parse_next(p);
    *sign = SIGN_NOT_IN;
    return true;
}

static struct st_node *parse_comparison(struct st_parse *p)
{
    struct st_node *n = parse_level(p, 0), **last = NULL;
    uint32_t line = st_parse_peek(p)->line;
    enum st_sign sign;

    for (; p->status == STRATA_OK && take_comparison(p, &sign); line = st_parse_peek(p)->line) {
        if (last == NULL) {
            n = join(p, NODE_COMPARE, line, n, NULL);
            last = &n->first;
        }
        /* the operand's sign stands in another node, since a constant may be anything */
        *last = join(p, NODE_ARGUMENT, line, parse_level(p, 0), NULL);
        (*last)->sign = sign;
        last = &(*last)->next;
    }
    return n;
}

static struct st_node *parse_not(struct st_parse *p)
{
    const struct st_tok *k = st_parse_peek(p);
    struct st_node *n;

    if (!st_parse_skip(p, TOK_NAME, "not"))
        return parse_comparison(p);
    if (!st_parse_enter(p))
        return st_parse_node(p, NODE_CONST, k->line);
    n = join(p, NODE_NOT, k->line, parse_not(p), NULL);
    st_parse_leave(p);
    return n;
}

static struct st_node *parse_and(struct st_parse *p)
{
    struct st_node *n = parse_not(p);

    while (p->status == STRATA_OK && st_parse_skip(p, TOK_NAME, "and"))
        n = join(p, NODE_AND, n->line, n, parse_not(p));
    return n;
}

static struct st_node *parse_or(struct st_parse *p)
{
    struct st_node *n = parse_and(p);

    while (p->status == STRATA_OK && st_parse_skip(p, TOK_NAME, "or"))
        n = join(p, NODE_OR, n->line, n, parse_and(p));
    return n;
}

static struct st_node *parse_choice(struct st_parse *p, bool with_condition)
{
    struct st_node *n = parse_or(p);

    while (with_condition && p->status == STRATA_OK && st_parse_skip(p, TOK_NAME, "if")) {
        n = join(p, NODE_CHOICE, n->line, n, parse_or(p));
        if (st_parse_skip(p, TOK_NAME, "else"))
            n->c = parse_choice(p, true);
    }
    return n;
}

struct st_node *st_parse_expression(struct st_parse *p, bool tuple, bool with_condition)
{
    const uint32_t line = st_parse_peek(p)->line;
    struct st_node *n, *all, **last;

    if (!st_parse_enter(p))
        return st_parse_node(p, NODE_CONST, line);
    n = parse_choice(p, with_condition);
    if (tuple && st_tok_is(st_parse_peek(p), TOK_SIGN, ",")) {
        all = st_parse_node(p, NODE_TUPLE, line);
        all->first = n;
        last = &n->next;
        while (p->status == STRATA_OK && st_parse_skip(p, TOK_SIGN, ",")) {
            const struct st_tok *k = st_parse_peek(p);

            if (k->kind == TOK_CLOSE || st_tok_is(k, TOK_SIGN, ")"))
                break;
            *last = parse_choice(p, with_condition);
            last = &(*last)->next;
        }
        n = all;
    }
    st_parse_leave(p);
    return n;
}

struct st_node *st_parse_target(struct st_parse *p, bool attribute)
{
    struct st_node *first = NULL, **last = &first, *all;
    const bool closed = st_parse_skip(p, TOK_SIGN, "(");
    const uint32_t line = st_parse_peek(p)->line;
    bool comma = false;

    do {
        const struct st_tok *k = st_parse_peek(p);

        if (first != NULL && (k->kind != TOK_NAME || st_tok_is(k, TOK_NAME, "in")))
            break;
        st_parse_expect(p, TOK_NAME, NULL);
        *last = st_parse_node(p, NODE_NAME, k->line);
        (*last)->text = copy_token(p, k);
        if (attribute && first->next == NULL && st_parse_skip(p, TOK_SIGN, ".")) {
            struct st_node *n = join(p, NODE_ATTRIBUTE, k->line, first, NULL);

            k = st_parse_peek(p);
            st_parse_expect(p, TOK_NAME, NULL);
            n->text = copy_token(p, k);
            return n;
        }
        last = &(*last)->next;
    } while (p->status == STRATA_OK && st_parse_skip(p, TOK_SIGN, ",") && (comma = true));
    if (closed)
        st_parse_expect(p, TOK_SIGN, ")");
    if (!comma)
        return first;
    all = st_parse_node(p, NODE_TUPLE, line);
    all->first = first;
    return all;
}
