/* text/data/token_identity.c - what tells a token file from others, so that a resumed run can say that its data is the same. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "text/data/tokens_file_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SAMPLES      64u
#define SAMPLE_BYTES 4096u

/* A byte's token needs no account: a text that is kept for the next run, with a meta file, is the same data as where it is not.
 */
static bool has_account(const struct st_token_file *f)
{
    const struct st_token_meta *meta = st_token_file_meta(f);

    return meta != NULL &&
           (meta->layout != ST_LAYOUT_CONCATENATED || meta->has_mask || meta->documents != 1 || meta->tokenizer != 0);
}

static void digest_head(struct st_digest *d, const struct st_token_file *f)
{
    const struct st_token_header header = {.token_bytes = st_token_file_token_bytes(f),
                                           .vocab = st_token_file_vocab(f),
                                           .count = st_token_file_count(f),
                                           .source_bytes = st_token_file_source_bytes(f)};
    const struct st_token_meta *meta = st_token_file_meta(f);
    unsigned char bytes[ST_TOKEN_HEADER_BYTES];
    char text[128] = "alone";

    st_token_header_write(bytes, &header);
    st_digest_update(d, bytes, sizeof(bytes));
    if (has_account(f))
        snprintf(text, sizeof(text), "%s %d %" PRIu64 " %016" PRIx64 " %s", st_token_layout_name(meta->layout), meta->has_mask,
                 meta->documents, meta->tokenizer, meta->tokens_digest);
    st_digest_update(d, text, strlen(text));
}

/* A file of fewer tokens than a sample is one sample. */
static strata_status digest_samples(struct st_digest *d, const struct st_token_file *f)
{
    const uint64_t count = st_token_file_count(f), most = SAMPLE_BYTES / st_token_file_token_bytes(f);
    const uint64_t sample = count < most ? count : most;
    unsigned char buf[SAMPLE_BYTES];
    strata_status st = STRATA_OK;

    for (uint64_t i = 0; i < SAMPLES && st == STRATA_OK; i++) {
        const uint64_t first = (count - sample) * i / (SAMPLES - 1); /* files have fewer than 2^58 tokens */

        st = st_token_file_read(f, first, sample, buf);
        if (st == STRATA_OK)
            st_digest_update(d, buf, sample * st_token_file_token_bytes(f));
    }
    return st == STRATA_OK ? st_token_file_check_unchanged(f) : st;
}

strata_status st_token_file_identify(const struct st_token_file *f, struct st_token_identity *out)
{
    struct st_digest *head = NULL, *samples = NULL;
    strata_status st = st_digest_create(&head);

    *out = (struct st_token_identity){.path = st_token_file_path(f),
                                      .bytes = ST_TOKEN_HEADER_BYTES + st_token_file_count(f) * st_token_file_token_bytes(f)};
    if (st == STRATA_OK)
        st = st_digest_create(&samples);
    if (st == STRATA_OK) {
        digest_head(head, f);
        st = digest_samples(samples, f);
    }
    if (st == STRATA_OK) {
        st_digest_hex(head, out->header);
        st_digest_hex(samples, out->windows);
        if (has_account(f))
            memcpy(out->marks, st_token_file_meta(f)->marks_digest, sizeof(out->marks));
    }
    st_digest_destroy(head);
    st_digest_destroy(samples);
    return st;
}
