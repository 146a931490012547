/* trace_events.c - finds where each value of the outermost object, and each event, begins and ends; core/json reads the value
 * itself, which is small.  A value ends where its brackets are closed; whether it is good JSON is not looked at here. */
#include "core/picture/trace_events_internal.h"

#include "core/base/error.h"
#include "core/picture/trace_read.h"
#include "core/system/file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER 65536u
#define END    (-1)

struct scan {
    int fd;
    uint64_t bytes, offset; /* offset: of what follows the buffer */
    struct st_trace_place place;
    strata_status status; /* of the first read that failed: then the text is at its end */
    size_t at, held;
    unsigned char buffer[BUFFER];
    char value[ST_TRACE_EVENT_MAX];
    size_t value_bytes;
};

strata_status st_trace_bad(const struct st_trace_place *place, const char *problem)
{
    return st_error(STRATA_E_INPUT, "%s:%llu:%llu: %s", place->path, (unsigned long long)place->line,
                    (unsigned long long)place->column, problem);
}

static int peek(struct scan *s)
{
    const uint64_t left = s->bytes - s->offset;

    if (s->at == s->held) {
        s->held = left < BUFFER ? (size_t)left : BUFFER;
        s->at = 0;
        if (s->status == STRATA_OK)
            s->status = st_file_read_at(s->fd, s->buffer, s->held, s->offset, s->place.path);
        if (s->status != STRATA_OK)
            s->held = 0;
        s->offset += s->held;
    }
    return s->at < s->held ? s->buffer[s->at] : END;
}

static void pass(struct scan *s)
{
    if (s->buffer[s->at++] == '\n') {
        s->place.line++;
        s->place.column = 1;
    } else {
        s->place.column++;
    }
}

static int peek_word(struct scan *s)
{
    int c;

    while ((c = peek(s)) == ' ' || c == '\n' || c == '\r' || c == '\t')
        pass(s);
    return c;
}

static strata_status bad(struct scan *s, const char *problem)
{
    return s->status != STRATA_OK ? s->status : st_trace_bad(&s->place, problem);
}

static strata_status expect(struct scan *s, char c, const char *problem)
{
    if (peek_word(s) != c)
        return bad(s, problem);
    pass(s);
    return STRATA_OK;
}

/* Copies the text of the value that begins here.  Its own place is left in *place. */
static strata_status take_text(struct scan *s, struct st_trace_place *place)
{
    bool quoted = false, escaped = false;
    uint32_t depth = 0;
    int c = peek_word(s);

    *place = s->place;
    for (s->value_bytes = 0; c != END; c = peek(s)) {
        if (!quoted && depth == 0 && s->value_bytes > 0 && strchr(",:]} \t\r\n", c) != NULL)
            break;
        if (s->value_bytes == sizeof(s->value))
            return st_trace_bad(place, "a value has more than 64 KiB");
        s->value[s->value_bytes++] = (char)c;
        pass(s);
        if (quoted) {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else {
            quoted = c == '"';
            depth += c == '{' || c == '[';
            if ((c == '}' || c == ']') && (depth == 0 || --depth == 0))
                break;
        }
    }
    return s->status;
}

static strata_status take_value(struct scan *s, st_json **out, struct st_trace_place *place)
{
    const strata_status st = take_text(s, place);

    if (st != STRATA_OK)
        return st;
    return st_json_parse_at(out, s->value, s->value_bytes, place->path, place->line, place->column);
}

static strata_status walk_events(struct scan *s, st_trace_event_fn *event, void *ctx)
{
    strata_status st = expect(s, '[', "traceEvents is no list of events");
    struct st_trace_place place;
    st_json *node;

    if (st == STRATA_OK && peek_word(s) == ']')
        return expect(s, ']', "");
    while (st == STRATA_OK) {
        node = NULL;
        if ((st = take_value(s, &node, &place)) == STRATA_OK)
            st = st_json_type(node) == ST_JSON_OBJECT ? event(ctx, node, &place)
                                                      : st_trace_bad(&place, "traceEvents is no list of events");
        st_json_free(node);
        if (st == STRATA_OK && peek_word(s) == ']')
            return expect(s, ']', "");
        if (st == STRATA_OK)
            st = expect(s, ',', "expected ',' or ']' after an event");
    }
    return st;
}

/* A key and its value; *found: it was the events. */
static strata_status walk_member(struct scan *s, bool *found, st_trace_event_fn *event, void *ctx)
{
    struct st_trace_place place;
    st_json *node = NULL;
    strata_status st = take_value(s, &node, &place);
    bool events = false;

    if (st == STRATA_OK && st_json_type(node) != ST_JSON_STRING)
        st = st_trace_bad(&place, "expected a key");
    if (st == STRATA_OK)
        events = strcmp(st_json_string(node), "traceEvents") == 0;
    st_json_free(node);
    node = NULL;
    if (st == STRATA_OK && events && *found)
        st = st_trace_bad(&place, "traceEvents is there twice");
    if (st == STRATA_OK)
        st = expect(s, ':', "expected ':' after a key");
    *found |= events;
    if (st == STRATA_OK && events)
        return walk_events(s, event, ctx);
    if (st == STRATA_OK)
        st = take_value(s, &node, &place);
    st_json_free(node);
    return st;
}

static strata_status walk_file(struct scan *s, st_trace_event_fn *event, void *ctx)
{
    strata_status st = expect(s, '{', "no trace: expected '{'");
    bool found = false, more = st == STRATA_OK && peek_word(s) != '}';

    while (st == STRATA_OK && more) {
        st = walk_member(s, &found, event, ctx);
        more = peek_word(s) == ',';
        if (st == STRATA_OK && more)
            pass(s);
    }
    if (st == STRATA_OK)
        st = expect(s, '}', "expected ',' or '}' after a value");
    if (st == STRATA_OK && peek_word(s) != END)
        st = bad(s, "bytes behind the end of the trace");
    if (st == STRATA_OK && !found)
        st = bad(s, "no trace: there are no traceEvents");
    return st == STRATA_OK ? s->status : st;
}

strata_status st_trace_events(int fd, uint64_t bytes, const char *path, st_trace_event_fn *event, void *ctx)
{
    struct scan *s = calloc(1, sizeof(*s));
    strata_status st;

    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->fd = fd;
    s->bytes = bytes;
    s->place = (struct st_trace_place){path, 1, 1};
    st = walk_file(s, event, ctx);
    free(s);
    return st;
}
