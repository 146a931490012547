/* model/hf/hf_digest.c - XXH3-128 over a directory's weights as stored, tensor by tensor in parameter order. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/system/file.h"
#include "model/hf/hf_reader_internal.h"
#include "model/layout.h"
#include <stdlib.h>

#define PART_BYTES (1u << 20)

static strata_status digest_tensor(struct st_digest *d, const struct st_hf_place *p, unsigned char *buf)
{
    strata_status st;

    for (uint64_t at = p->begin; at < p->end; at += PART_BYTES) {
        const uint64_t bytes = p->end - at < PART_BYTES ? p->end - at : PART_BYTES;

        if ((st = st_file_read_at(p->fd, buf, bytes, at, p->path)) != STRATA_OK)
            return st;
        st_digest_update(d, buf, bytes);
    }
    return STRATA_OK;
}

static strata_status digest_all(const struct st_model *m, const struct st_hf_reader *r, char hex[33])
{
    unsigned char *buf = malloc(PART_BYTES);
    struct st_digest *d = NULL;
    strata_status st = buf != NULL ? st_digest_create(&d) : st_nomem(PART_BYTES);

    for (uint32_t i = 0; i < m->tensor_count && st == STRATA_OK; i++) {
        const struct st_hf_place p = st_hf_reader_place(r, i);

        st = digest_tensor(d, &p, buf);
    }
    if (st == STRATA_OK && (st = st_hf_reader_check_unchanged(r)) == STRATA_OK)
        st_digest_hex(d, hex);
    if (d != NULL)
        st_digest_destroy(d);
    free(buf);
    return st;
}

strata_status st_hf_digest(const char *dir, char hex[33])
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config;
    struct st_hf_reader *r = NULL;
    struct st_model *m = NULL;
    strata_status st;

    if ((st = st_model_config_read(&config, dir)) == STRATA_OK && config.quantised)
        return st_error(STRATA_E_INPUT,
                        "%s: its weights are quantised, which have no digest: that is of weights as runs write them", dir);
    if (st == STRATA_OK && (st = st_model_create(&m, &config, &batch)) == STRATA_OK &&
        (st = st_hf_reader_open(&r, m, dir)) == STRATA_OK)
        st = digest_all(m, r, hex);
    st_hf_reader_close(r);
    st_model_destroy(m);
    return st;
}
