/* text/template/template_internal.h - the parts of the interpreter: tokens, nodes, values, and one rendering.
 *
 * Text -> tokens (template_lex.c) -> nodes (template_parse.c, template_parse_expr.c), once.  A rendering walks the nodes
 * (template_run.c: statements, template_eval.c: expressions; template_input.c: what they start with) with values
 * (template_value.c) that live in an arena until it ends. Strings keep where each of their bytes came from through every
 * operation. */
#ifndef TEXT_TEMPLATE_TEMPLATE_INTERNAL_H
#define TEXT_TEMPLATE_TEMPLATE_INTERNAL_H

#include "text/template/template.h"

/* --- arena: what is allocated together is freed together --- */

struct st_arena {
    struct st_arena_block *last;
    size_t used, limit; /* bytes */
};
/** Zeroed, aligned to 16; NULL: past the limit, or no memory. */
void *st_arena_get(struct st_arena *a, size_t bytes);
void st_arena_free(struct st_arena *a);

/* --- tokens --- */

enum st_token_kind {
    TOK_DATA,   /* text between tags */
    TOK_PRINT,  /* {{ */
    TOK_TAG,    /* {% */
    TOK_CLOSE,  /* }} or %} */
    TOK_NAME,   /* also keywords */
    TOK_STRING, /* decoded */
    TOK_INT,
    TOK_FLOAT,
    TOK_SIGN, /* an operator; text names it */
    TOK_END,
};

struct st_tok {
    enum st_token_kind kind;
    uint32_t line;
    const char *text; /* in the template's text or its arena */
    size_t bytes;
    int64_t integer;
    double real;
};

/* --- nodes --- */

enum st_node_kind {
    /* expressions */
    NODE_CONST, /* value */
    NODE_NAME,  /* text */
    NODE_LIST,  /* first..: items */
    NODE_TUPLE,
    NODE_DICT,      /* first..: key, value, key, value */
    NODE_ATTRIBUTE, /* a, text */
    NODE_ITEM,      /* a, b */
    NODE_SLICE,     /* a; first..: start, stop, step (NODE_CONST none) */
    NODE_CALL,      /* a; first..: arguments (NODE_ARGUMENT where named) */
    NODE_FILTER,    /* a or NULL (a filter block's body), text, first..: arguments */
    NODE_TEST,      /* a, text, first..: arguments */
    NODE_NOT,       /* a */
    NODE_NEGATE,
    NODE_POSITIVE,
    NODE_BINARY,  /* a, b, sign */
    NODE_COMPARE, /* a; first..: operands, each with its sign */
    NODE_AND,
    NODE_OR,
    NODE_CHOICE,   /* a if b else c (c NULL: undefined) */
    NODE_ARGUMENT, /* text = a */
    NODE_SPREAD,   /* *a: arguments of a list */
    /* statements */
    NODE_DATA,         /* text */
    NODE_PRINT,        /* a */
    NODE_IF,           /* a, body, other (a NODE_IF or a body) */
    NODE_FOR,          /* target in a if b: body, else other */
    NODE_SET,          /* target = a */
    NODE_SET_BLOCK,    /* target; body; a: filters (innermost has a NULL) or NULL */
    NODE_MACRO,        /* text, first..: parameters (NODE_ARGUMENT, a: default), body */
    NODE_FILTER_BLOCK, /* a: filters, body */
    NODE_CALL_BLOCK,   /* a: NODE_CALL of a macro, body: the NODE_MACRO that it has as caller() */
    NODE_GENERATION,   /* body */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum st_sign {
    SIGN_ADD,
    SIGN_SUB,
    SIGN_MUL,
    SIGN_DIV,
    SIGN_MOD,
    SIGN_CONCAT,
    SIGN_EQ,
    SIGN_NE,
    SIGN_LT,
    SIGN_LE,
    SIGN_GT,
    SIGN_GE,
    SIGN_IN,
    SIGN_NOT_IN,
};

/* --- values --- */

enum st_value_kind {
    VAL_UNDEFINED, /* name: what was missing, for errors */
    VAL_NONE,
    VAL_BOOL,
    VAL_INT,
    VAL_FLOAT,
    VAL_STRING,
    VAL_LIST,
    VAL_TUPLE,
    VAL_RANGE,    /* a list that is printed as its bounds */
    VAL_VIEW,     /* the keys, values or items of a dict: a list without places, printed by its name */
    VAL_ITERATOR, /* what some filters give: true, without length or places, and read once */
    VAL_DICT,
    VAL_NAMESPACE, /* a dict that {% set ns.name %} changes */
    VAL_MACRO,
    VAL_FUNCTION, /* a global function; name */
    VAL_METHOD,   /* name of *self */
    VAL_LOOP,
};

struct st_string {
    const char *text; /* [bytes] UTF-8; not NUL-terminated */
    size_t bytes;
    const uint32_t *origins; /* [bytes]; NULL: all ST_ORIGIN_TEMPLATE */
    bool safe;               /* came from the filter of that name: + with it would escape HTML */
};

struct st_value {
    enum st_value_kind kind;
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *name;
        struct st_string *string;
        struct st_list *list;
        struct st_dict *dict;
        struct st_macro *macro;
        struct st_method *method;
        struct st_loop *loop;
    } as;
};

struct st_list {
    struct st_value *items;
    size_t count, capacity;
    size_t read;               /* of an iterator: how many items have been read */
    int64_t start, stop, step; /* of a range */
    const char *view;          /* name of a view */
};

struct st_dict {
    struct st_value *keys, *values; /* in order of insertion */
    size_t count, capacity;
    uint32_t message; /* number of the input message that this is, from 1; 0: none */
};

struct st_method {
    struct st_value self;
    const char *name;
};

/* A condition is asked when the loop, or loop.last and the like, gets to the item: what the body has set by then counts. */
struct st_loop {
    struct st_list *items; /* of a loop that asks: those that it has got so far */
    size_t index;          /* 0-based */
    const struct st_node *node;
    struct st_scope *scope; /* around the loop */
    struct st_list *from;   /* an iterator of the items that are still to be asked for; NULL: there are none */
};

struct st_macro {
    const struct st_node *node;
    struct st_scope *scope; /* where it was defined */
};

struct st_node {
    enum st_node_kind kind;
    enum st_sign sign;
    uint32_t line;
    struct st_value value; /* NODE_CONST */
    const char *text;      /* NUL-terminated name, or a DATA's text */
    size_t bytes;          /* of a DATA */
    struct st_node *a, *b, *c;
    struct st_node *first;        /* list of operands, by next */
    struct st_node *target;       /* NODE_NAME, NODE_TUPLE of names, NODE_ATTRIBUTE of a name */
    struct st_node *body, *other; /* lists of statements, by next */
    struct st_node *next;
};

struct st_template {
    char *name;
    struct st_arena arena; /* text, nodes, constants */
    struct st_node *body;
    bool has_generation;
};

/* --- the parser --- */

struct st_parse {
    struct st_template *t;
    const char *text, *end; /* normalised text */
    struct st_tok *toks;
    uint32_t count, capacity, at;
    uint32_t depth;
    struct st_node dummy; /* what a parser without memory goes on with */
    strata_status status; /* the first failure; the parser goes on as at the end of the text */
};

/** Fill p->toks; sets p->status. */
void st_template_lex(struct st_parse *p);
/** Record the first failure: "NAME, line LINE: ...". */
void st_parse_fail(struct st_parse *p, uint32_t line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *st_parse_get(struct st_parse *p, size_t bytes); /* from the template's arena; NULL: failed */
struct st_node *st_parse_node(struct st_parse *p, enum st_node_kind kind, uint32_t line);
const struct st_tok *st_parse_peek(struct st_parse *p);
const struct st_tok *st_parse_next(struct st_parse *p);
bool st_tok_is(const struct st_tok *k, enum st_token_kind kind, const char *text);
bool st_parse_skip(struct st_parse *p, enum st_token_kind kind, const char *text); /* true: it was there */
void st_parse_expect(struct st_parse *p, enum st_token_kind kind, const char *text);
char *st_parse_copy(struct st_parse *p, const char *text, size_t bytes);
bool st_parse_enter(struct st_parse *p); /* counts depth; false: failed */
void st_parse_leave(struct st_parse *p);
/** An expression; `tuple`: commas at its end make a tuple of it. */
struct st_node *st_parse_expression(struct st_parse *p, bool tuple, bool with_condition);
/** What {% for %} and {% set %} assign: names, or ns.name where `attribute`. */
struct st_node *st_parse_target(struct st_parse *p, bool attribute);
/** NAME(arguments) | NAME ...: the filters of {% filter %} and of a {% set %} block. */
struct st_node *st_parse_filters(struct st_parse *p, struct st_node *of, bool first);

/* --- one rendering --- */

struct st_scope {
    struct st_scope *parent;
    struct st_variable *variables;
};

struct st_builder {
    char *text;
    uint32_t *origins;
    size_t bytes, capacity;
};

struct st_render {
    const struct st_template *t;
    const struct st_template_input *input;
    struct st_arena arena;
    struct st_scope *scope;
    struct st_builder *out;
    uint64_t steps_max, steps_left;
    uint32_t depth;
    uint32_t message;     /* that a loop is at, from 1; 0: none */
    bool printed_parts;   /* struct st_rendered */
    uint32_t line;        /* of the statement or expression at work */
    strata_status status; /* the first failure; values are undefined from then on */
};

/** Record the first failure: "NAME, line LINE: ...".  Returns an undefined value. */
struct st_value st_render_fail(struct st_render *r, strata_status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/** Count work of about `bytes` bytes against the limit; false: rendering has failed. */
bool st_render_spend(struct st_render *r, size_t bytes);
/** Count one level of nesting, of calls or of values; false: rendering has failed.  Leave either way. */
bool st_render_enter(struct st_render *r);
void st_render_leave(struct st_render *r);
void *st_render_get(struct st_render *r, size_t bytes); /* from the arena; NULL: failed */
/** Set the variables that the input gives. */
void st_render_input(struct st_render *r);

/* values */
struct st_value st_val_undefined(const char *name);
struct st_value st_val_none(void);
struct st_value st_val_bool(bool truth);
struct st_value st_val_int(int64_t integer);
struct st_value st_val_float(double real);
struct st_value st_val_string(struct st_render *r, const char *text, size_t bytes, const uint32_t *origins); /* borrows */
struct st_value st_val_text(struct st_render *r, const char *text);                                          /* borrows */
struct st_value st_val_list(struct st_render *r, enum st_value_kind kind);
struct st_value st_val_dict(struct st_render *r, enum st_value_kind kind);
void st_list_push(struct st_render *r, struct st_list *l, struct st_value v);
void st_dict_put(struct st_render *r, struct st_dict *d, struct st_value key, struct st_value v);
/** Whether Python takes it for the key of a dict: no list, dict, namespace or view, and no tuple of such. */
bool st_val_hashable(const struct st_value *v);
const struct st_value *st_dict_get(struct st_render *r, const struct st_dict *d, const struct st_value *key);
const struct st_value *st_dict_find(struct st_render *r, const struct st_dict *d, const char *key);
struct st_value st_val_json(struct st_render *r, const st_json *n, uint32_t origin);
bool st_val_is_string(const struct st_value *v, const char *text);
bool st_val_true(const struct st_value *v);
bool st_val_equal(struct st_render *r, const struct st_value *a, const struct st_value *b);
/** -1, 0, 1; fails where Python has no order. */
int st_val_compare(struct st_render *r, const struct st_value *a, const struct st_value *b);
/** The items of a list, tuple, dict (keys), string (characters), undefined (none) or iterator (those that are left, which are
 * read then); anything else fails. */
struct st_list *st_val_items(struct st_render *r, const struct st_value *v);
/** An iterator of a list's items. */
struct st_value st_val_iterator(struct st_render *r, const struct st_list *items);
/** The next item of an iterator; NULL: all have been read. */
const struct st_value *st_iterator_next(struct st_list *iterator);
/** Whether a loop has an item of this index; SIZE_MAX: afterwards loop->items has them all. */
bool st_loop_has(struct st_render *r, struct st_loop *loop, size_t index);
/** Python's len(); -1: it has none. */
int64_t st_val_length(struct st_render *r, const struct st_value *v);
const char *st_val_type(const struct st_value *v); /* for errors */
bool st_val_has_list(const struct st_value *v);    /* a list, tuple or range: v->as.list */

/* strings */
struct st_string st_string_part(const struct st_string *s, size_t from, size_t to);
size_t st_string_chars(const struct st_string *s);
size_t st_utf8_next(const struct st_string *s, size_t at); /* byte offset of the next character */
struct st_value st_val_part(struct st_render *r, const struct st_string *s, size_t from, size_t to);
size_t st_string_find(struct st_render *r, const struct st_string *s, size_t from, const char *what, size_t bytes); /* SIZE_MAX */
/** Python's strip(): `chars` NULL: white space; which sides. */
struct st_value st_val_strip(struct st_render *r, const struct st_string *s, const struct st_string *chars, bool left,
                             bool right);
struct st_value st_val_replace(struct st_render *r, const struct st_string *s, const struct st_string *from,
                               const struct st_string *to, int64_t count);
/** Bytes of the white space character at text, or 0. */
size_t st_space_at(const char *text, const char *end);

/* output */
void st_build(struct st_render *r, struct st_builder *b, const char *text, size_t bytes, const uint32_t *origins);
void st_build_text(struct st_render *r, struct st_builder *b, const char *text);
void st_build_value(struct st_render *r, struct st_builder *b, const struct st_value *v); /* Python's str() */
/* As Python's json.dumps() takes it. */
struct st_json_style {
    int64_t indent; /* -1: on one line */
    bool ascii;
    const struct st_value *comma, *colon; /* strings; NULL: ", " (with an indent ",") and ": " */
    int64_t level;                        /* how deep the value stands; 0 */
};
void st_build_json(struct st_render *r, struct st_builder *b, const struct st_value *v, const struct st_json_style *style);
struct st_value st_val_built(struct st_render *r, const struct st_builder *b);
/** str(v) as a string value. */
struct st_value st_val_str(struct st_render *r, const struct st_value *v);

/* expressions and calls */
struct st_arguments {
    struct st_value at[8]; /* positional */
    uint32_t count;
    struct {
        const char *name;
        struct st_value value;
    } named[8];
    uint32_t named_count;
};
/** Argument number `index` or called `name` (NULL: only by position), or NULL. */
const struct st_value *st_argument(const struct st_arguments *args, uint32_t index, const char *name);

/** a + b, - * / and %, as Python computes them; what it refuses, and what is no number of 64 bits, fails. */
struct st_value st_val_of_integers(struct st_render *r, enum st_sign sign, int64_t a, int64_t b);
struct st_value st_val_of_reals(struct st_render *r, enum st_sign sign, double a, double b);

struct st_value st_eval(struct st_render *r, const struct st_node *n);
struct st_value st_call(struct st_render *r, const struct st_value *f, const struct st_arguments *args);
struct st_value st_call_method(struct st_render *r, const struct st_method *m, const struct st_arguments *args);
bool st_has_method(const struct st_value *self, const char *name); /* in Python; the subset may lack it */
struct st_value st_call_macro(struct st_render *r, const struct st_macro *m, const struct st_arguments *args);
struct st_value st_apply_filter(struct st_render *r, const char *name, const struct st_value *v, const struct st_arguments *args);
typedef struct st_value st_filter_fn(struct st_render *r, const struct st_value *v, const struct st_arguments *args);
st_filter_fn st_filter_upper, st_filter_lower, st_filter_capitalize, st_filter_title, st_filter_trim, st_filter_string,
    st_filter_safe, st_filter_replace, st_filter_indent, st_filter_tojson, st_filter_int;
enum st_letter_case { CASE_UPPER, CASE_LOWER, CASE_CAPITAL, CASE_TITLE, CASE_WORDS };
/** A text in another case, as Jinja's filter of that name writes it; capital: only the first letter, title: that of each word;
 *  words: as Python's method title() does, where a word begins behind whatever is no letter. */
struct st_value st_with_case(struct st_render *r, const struct st_value *v, enum st_letter_case wanted);
/** The text of a value, as Jinja's soft_str gives it; NULL: failed. */
const struct st_string *st_soft_text(struct st_render *r, const struct st_value *v);
bool st_argument_flag(const struct st_arguments *args, uint32_t index, const char *name); /* true if given and true */
bool st_value_integer(const struct st_value *v, int64_t *out);                            /* false: NULL or none */
bool st_apply_test(struct st_render *r, const char *name, const struct st_value *v, const struct st_arguments *args);
bool st_compare_sign(struct st_render *r, enum st_sign sign, const struct st_value *a, const struct st_value *b);
struct st_value st_get_attribute(struct st_render *r, const struct st_value *of, const char *name);
struct st_value st_get_item(struct st_render *r, const struct st_value *of, const struct st_value *key);
/** A call, with one more argument, "caller", where `caller` is not NULL. */
struct st_value st_eval_call(struct st_render *r, const struct st_node *n, const struct st_value *caller);
void st_eval_arguments(struct st_render *r, struct st_arguments *args, const struct st_node *first);
/** Apply the chain of filters `n` (innermost without an operand) to v. */
struct st_value st_eval_filters(struct st_render *r, const struct st_node *n, const struct st_value *v);

/* scopes */
struct st_scope *st_scope_open(struct st_render *r, struct st_scope *parent);
void st_scope_set(struct st_render *r, struct st_scope *s, const char *name, struct st_value v);
struct st_value st_scope_get(const struct st_render *r, const char *name);
bool st_is_function(const char *name); /* a global function of the subset */

#endif
