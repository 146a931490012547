/* api/handles.c - shared by the public functions: sizes of structs, and missing arguments. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

strata_status st_handle_room(const void *to, size_t bytes, const char *name)
{
    size_t size = 0;

    memcpy(&size, to, sizeof(size));
    if (size == bytes)
        return STRATA_OK;
    return st_error(
        STRATA_E_INVAL,
        "struct %s gives its size as %zu bytes, not %zu: set its first member to sizeof(struct %s), with this library's headers",
        name, size, bytes, name);
}

strata_status st_handle_opts(void *to, size_t bytes, const void *from, const char *name)
{
    strata_status st;

    memset(to, 0, bytes);
    if (from == NULL)
        return STRATA_OK;
    if ((st = st_handle_room(from, bytes, name)) == STRATA_OK)
        memcpy(to, from, bytes);
    return st;
}

strata_status st_handle_result(void *to, const void *from, size_t bytes, const char *name)
{
    const strata_status st = st_handle_room(to, bytes, name);

    if (st == STRATA_OK)
        memcpy((unsigned char *)to + sizeof(size_t), (const unsigned char *)from + sizeof(size_t), bytes - sizeof(size_t));
    return st;
}

static strata_status check_needs(const struct strata_engine *e, const char *function, enum st_handle_needs needs)
{
    const bool inside = needs == ST_HANDLE_STEP && st_engine_caller_inside(e->run.engine); /* its calls say it themselves */
    strata_status st = STRATA_OK;

    if (needs < ST_HANDLE_STEP && st_engine_caller_runs(e->run.engine))
        return st_error(STRATA_E_BUSY, "%s: a step is under way: strata_engine_end() or strata_engine_drop() ends it", function);
    if (needs >= ST_HANDLE_GOES_ON && !inside)
        st = st_engine_ended(e->run.engine);
    if (st == STRATA_OK && needs == ST_HANDLE_STEP && !inside)
        return st_error(STRATA_E_INVAL, "%s: no step is under way: strata_engine_begin() comes first", function);
    if (st != STRATA_OK || needs < ST_HANDLE_LOADED || needs == ST_HANDLE_STEP)
        return st;
    if (!e->loaded)
        return st_error(STRATA_E_INVAL, "%s: nothing is loaded: strata_engine_load() comes first", function);
    if (needs == ST_HANDLE_TRAINS && !st_engine_trains(e->run.engine))
        return st_error(STRATA_E_INVAL, "%s: after strata_engine_end_training(): strata_engine_load() comes first", function);
    return STRATA_OK;
}

strata_status st_handle_check_decoder(const struct strata_model *m, const char *function)
{
    if (m->layers == NULL)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "%s: %s is a model of layers that the program computes: this needs one that strata computes",
                    function, m->name);
}

strata_status st_handle_enter(struct strata_engine *e, const char *function, enum st_handle_needs needs)
{
    strata_status st;

    if (e == NULL)
        return st_error_missing(function, "engine");
    if (e->pid != getpid())
        return st_error(STRATA_E_INVAL,
                        "%s: the engine was created by process %ld, where its threads run: process %ld must create its own",
                        function, (long)e->pid, (long)getpid());
    if (atomic_flag_test_and_set(&e->busy))
        return st_error(STRATA_E_BUSY,
                        "%s: another call on this engine is in progress: wait for its end; only strata_engine_cancel() may be "
                        "called meanwhile",
                        function);
    st_floats_plain(&e->floats);
    if ((st = check_needs(e, function, needs)) != STRATA_OK)
        st_handle_leave(e);
    return st;
}

void st_handle_leave(struct strata_engine *e)
{
    st_floats_restore(&e->floats);
    atomic_flag_clear(&e->busy);
}

strata_status st_handle_text(char **out, const char *text)
{
    *out = NULL;
    if (text == NULL)
        return STRATA_OK;
    *out = st_fault_refuses("api.text") ? NULL : strdup(text);
    return *out != NULL ? STRATA_OK : st_nomem(strlen(text));
}

void st_handle_text_begin(struct st_kept_text *t, char **kept, const char *site)
{
    free(*kept);
    *kept = NULL;
    *t = (struct st_kept_text){.kept = kept};
    t->file = st_fault_refuses(site) ? NULL : open_memstream(kept, &t->bytes);
}

strata_status st_handle_text_end(struct st_kept_text *t, strata_status st)
{
    const bool whole = t->file != NULL && fclose(t->file) == 0 && *t->kept != NULL;

    if (whole && st == STRATA_OK)
        return STRATA_OK;
    free(*t->kept);
    *t->kept = NULL;
    return st != STRATA_OK ? st : st_nomem(0);
}
