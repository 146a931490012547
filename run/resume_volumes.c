/* run/resume_volumes.c - see run/resume_volumes.h. */
#include "run/resume_volumes.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdlib.h>

static strata_status open_space(struct st_resume_space *out, struct st_swap *swap, const struct st_checkpoint *ck,
                                enum st_space space, uint32_t part)
{
    struct st_checkpoint_volume *v = st_fault_refuses("run.volumes") ? NULL : malloc(sizeof(*v));
    strata_status st;

    if (v == NULL)
        return st_nomem(sizeof(*v));
    if ((st = st_checkpoint_volume_open(v, ck, space, part)) != STRATA_OK) {
        free(v);
        return st;
    }
    out->volume = ST_MOVER_NO_VOLUME;
    if (v->opts.bytes > 0 && (st = st_swap_attach(swap, &v->opts, &out->volume)) != STRATA_OK) {
        st_checkpoint_volume_close(v);
        free(v);
        return st;
    }
    out->files = v;
    return STRATA_OK;
}

static void close_space(struct st_resume_space *s, struct st_swap *swap)
{
    if (s->files == NULL)
        return;
    if (s->volume != ST_MOVER_NO_VOLUME)
        st_swap_detach(swap, s->volume);
    st_checkpoint_volume_close(s->files);
    free(s->files);
    s->files = NULL;
}

strata_status st_resume_volumes_open(struct st_resume_volumes *r, struct st_engine *engine, const struct st_checkpoint *ck,
                                     uint32_t part)
{
    struct st_swap *swap;
    strata_status st = st_engine_reader(engine, &swap);

    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT && st == STRATA_OK; space++) {
        st = open_space(&r->all[space], swap, ck, (enum st_space)space, ST_CHECKPOINT_PARTS);
        if (st == STRATA_OK && part != ST_CHECKPOINT_PARTS)
            st = open_space(&r->own[space], swap, ck, (enum st_space)space, part);
    }
    for (uint32_t space = 0; space < ST_SPACE_COUNT; space++) {
        r->volumes[space] = r->all[space].volume;
        r->own_volumes[space] = r->own[space].volume;
    }
    return st;
}

void st_resume_volumes_drop_set(struct st_resume_volumes *r, struct st_engine *engine)
{
    if (r == NULL)
        return;
    close_space(&r->all[ST_SPACE_SET], st_engine_swap(engine));
    close_space(&r->own[ST_SPACE_SET], st_engine_swap(engine));
}

void st_resume_volumes_free(struct st_resume_volumes *r, struct st_engine *engine)
{
    if (r == NULL)
        return;
    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++) {
        close_space(&r->all[space], st_engine_swap(engine));
        close_space(&r->own[space], st_engine_swap(engine));
    }
    free(r);
}
