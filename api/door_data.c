/* api/door_data.c - strata/data.h: sequences of token files, addressed by position. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "offload/checkpoint/manifest.h"
#include "run/ranks_agree.h"
#include "text/data/token_meta.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* RoPE scaling is chosen by our sequence length; transformers chooses it by the longest text. */
static void note_factors(const struct strata_data *d, const struct st_model_config *c)
{
    const uint32_t longest = st_token_set_longest(d->set);

    if (c->positions == ST_POSITION_ROTARY && c->rope_type == ST_ROPE_LONGROPE && d->seq > c->rope_original &&
        longest <= c->rope_original)
        st_log(ST_LOG_NOTICE,
               "sequences of %u tokens (above %u) take %s's long RoPE factors; documents have at most %u: model.seq_len %u takes "
               "the short ones",
               d->seq, c->rope_original, c->name, longest, c->rope_original);
}

_Static_assert(ST_TOKEN_SET_FILES_MAX <= ST_MANIFEST_DATA_MAX, "a run that reads them can be saved");

strata_status st_handle_identify(struct st_run_data *out, const struct strata_data *data)
{
    const uint32_t count = data != NULL ? st_token_set_files(data->set) : 0;
    strata_status st = STRATA_OK;

    *out = (struct st_run_data){0};
    if (data == NULL)
        return STRATA_OK;
    out->seq = data->seq;
    out->sequences = st_token_set_windows(data->set);
    memcpy(out->date, data->date, sizeof(out->date));
    if ((out->files = calloc(count, sizeof(*out->files))) == NULL)
        return st_nomem(count * sizeof(*out->files));
    for (; out->file_count < count && st == STRATA_OK; out->file_count++) {
        struct st_run_file *file = &out->files[out->file_count];
        struct st_token_identity identity;

        if ((st = st_token_set_identify(data->set, out->file_count, &identity)) != STRATA_OK)
            break;
        *file = (struct st_run_file){.path = data->texts != NULL ? data->texts : identity.path, .bytes = identity.bytes};
        memcpy(file->header, identity.header, sizeof(file->header));
        memcpy(file->windows, identity.windows, sizeof(file->windows));
        memcpy(file->marks, identity.marks, sizeof(file->marks));
    }
    if (st != STRATA_OK)
        free(out->files);
    return st;
}

static strata_status agree(const struct strata_data *d, const struct strata_model *model)
{
    struct st_run_data is;
    strata_status st;

    if (st_handle_comm(model) == NULL || (st = st_handle_identify(&is, d)) != STRATA_OK)
        return st_handle_comm(model) == NULL ? STRATA_OK : st;
    st = st_ranks_agree_data(st_handle_comm(model), &is);
    free(is.files);
    return st;
}

static strata_status open_set(struct strata_data *d, const struct strata_model *model, const char *const *paths, uint32_t count,
                              const char *texts)
{
    const uint32_t vocab = st_model_config(model->model)->vocab;
    strata_status st;

    d->seq = model->size.seq;
    if (texts != NULL && (st = st_handle_text(&d->texts, texts)) != STRATA_OK)
        return st;
    st = texts != NULL ? st_token_set_open_as(&d->set, paths[0], texts, vocab, d->seq)
                       : st_token_set_open(&d->set, paths, count, vocab, d->seq);
    if (st == STRATA_OK && st_token_set_documents(d->set) && !model->size.documents)
        return st_error(STRATA_E_INPUT, "%s: sequences hold several documents: open the model with strata_model_opts.documents",
                        texts != NULL ? texts : paths[0]);
    if (st == STRATA_OK)
        note_factors(d, st_model_config(model->model));
    return st == STRATA_OK ? agree(d, model) : st;
}

void st_handle_note_vocab(const struct strata_data *data, const struct strata_model *model)
{
    const uint32_t rows = st_model_config(model->model)->vocab;
    const char *name = NULL;
    const uint32_t vocab = st_token_set_vocab(data->set, &name);

    if (vocab > rows)
        st_log(ST_LOG_NOTICE, "%s: its tokenizer has %u tokens, and %s rows for %u: the others never occur", name, vocab,
               model->name, rows);
}

/* texts: what the one file was made of, or NULL. */
static strata_status open_data(struct strata_data **data, const struct strata_model *model, const char *const *paths,
                               uint32_t count, const char *texts)
{
    struct strata_data *d = st_fault_refuses("api.data") ? NULL : calloc(1, sizeof(*d));
    strata_status st;

    if (d == NULL)
        return st_nomem(sizeof(*d));
    if ((st = open_set(d, model, paths, count, texts)) != STRATA_OK) {
        strata_data_close(d);
        return st;
    }
    *data = d;
    return STRATA_OK;
}

strata_status strata_data_open(struct strata_data **data, const struct strata_model *model, const char *const *paths,
                               uint32_t count)
{
    strata_status st;

    if (data == NULL || model == NULL || paths == NULL)
        return st_error_missing(__func__, data == NULL ? "data" : model == NULL ? "model" : "paths");
    if (count == 0)
        return st_error(STRATA_E_INVAL, "%s: count is 0: name a token file", __func__);
    for (uint32_t i = 0; i < count; i++)
        if (paths[i] == NULL)
            return st_error_missing(__func__, "one of paths");
    if ((st = st_handle_check_decoder(model, __func__)) == STRATA_OK &&
        (st = open_data(data, model, paths, count, NULL)) == STRATA_OK)
        st_handle_note_vocab(*data, model);
    return st;
}

strata_status st_handle_data_of_texts(struct strata_data **data, const struct strata_model *model, const char *path,
                                      const char *texts)
{
    return open_data(data, model, &path, 1, texts);
}

strata_status strata_data_documents(const char *const *paths, uint32_t count, bool *documents)
{
    bool found = false;

    if (paths == NULL || documents == NULL)
        return st_error_missing(__func__, paths == NULL ? "paths" : "documents");
    if (count == 0)
        return st_error(STRATA_E_INVAL, "%s: count is 0: name a token file", __func__);
    for (uint32_t i = 0; i < count; i++) {
        enum st_token_layout layout;
        strata_status st;

        if (paths[i] == NULL)
            return st_error_missing(__func__, "one of paths");
        if ((st = st_token_meta_layout(&layout, paths[i])) != STRATA_OK)
            return st;
        found = found || layout == ST_LAYOUT_PACKED;
    }
    *documents = found;
    return STRATA_OK;
}

uint64_t strata_data_count(const struct strata_data *data)
{
    return data != NULL ? st_token_set_windows(data->set) : 0;
}

/* Which window stands at a position.  False: none does. */
static bool find_window(uint64_t *window, const struct strata_data *d, enum strata_data_order order, uint64_t position,
                        uint32_t count)
{
    const uint64_t windows = st_token_set_windows(d->set), pass = (windows + count - 1) / count * count;

    switch (order) {
    case STRATA_DATA_SHUFFLED:
        *window = position;
        return true;
    case STRATA_DATA_CYCLE:
        *window = position % windows;
        return true;
    case STRATA_DATA_EPOCHS:
        *window = position / pass * windows + position % pass;
        return position % pass < windows;
    case STRATA_DATA_EPOCHS_IN_ORDER:
        *window = position % pass;
        return *window < windows;
    case STRATA_DATA_IN_ORDER:
        break;
    }
    *window = position;
    return position < windows;
}

static strata_status read_one(const struct strata_data *d, bool there, bool shuffle, uint64_t seed, uint64_t window,
                              int32_t *tokens, int32_t *targets, int32_t *positions)
{
    if (there)
        return st_token_set_window(d->set, window, seed, shuffle, tokens, targets, positions);
    memset(tokens, 0, d->seq * sizeof(*tokens));
    for (uint32_t i = 0; i < d->seq; i++)
        targets[i] = STRATA_TARGET_PADDING;
    for (uint32_t i = 0; positions != NULL && i < d->seq; i++)
        positions[i] = (int32_t)i;
    return STRATA_OK;
}

strata_status strata_data_read(const struct strata_data *data, enum strata_data_order order, uint64_t seed, uint64_t first,
                               uint32_t count, int32_t *tokens, int32_t *targets, int32_t *positions)
{
    return strata_data_read_part(data, order, seed, first, count, 0, count, tokens, targets, positions);
}

strata_status strata_data_read_part(const struct strata_data *data, enum strata_data_order order, uint64_t seed, uint64_t first,
                                    uint32_t count, uint32_t part, uint32_t part_count, int32_t *tokens, int32_t *targets,
                                    int32_t *positions)
{
    strata_status st = STRATA_OK;

    if (data == NULL || tokens == NULL || targets == NULL)
        return st_error_missing(__func__, data == NULL ? "data" : tokens == NULL ? "tokens" : "targets");
    if (part_count > count || part > count - part_count)
        return st_error(STRATA_E_INVAL, "%s: sequences %u to %" PRIu64 " of %u", __func__, part, (uint64_t)part + part_count,
                        count);
    if ((unsigned)order > STRATA_DATA_EPOCHS_IN_ORDER)
        return st_error(STRATA_E_INVAL, "%s: %d is not an order", __func__, (int)order);
    if (positions == NULL && st_token_set_documents(data->set))
        return st_error(
            STRATA_E_INVAL,
            "%s: sequences hold several documents: give positions, and open the model with strata_model_opts.documents",
            __func__);
    for (uint32_t i = 0; i < part_count && st == STRATA_OK; i++) {
        uint64_t window;
        const bool there = find_window(&window, data, order, first + part + i, count);

        st = read_one(data, there, order == STRATA_DATA_SHUFFLED || order == STRATA_DATA_EPOCHS, seed, window,
                      tokens + (size_t)i * data->seq, targets + (size_t)i * data->seq,
                      positions != NULL ? positions + (size_t)i * data->seq : NULL);
    }
    return st;
}

static strata_status check_id(const char *what, int64_t id, uint32_t vocab, uint64_t index, uint32_t length)
{
    if (id >= 0 && id < vocab)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s %" PRIu64 " of sequence %" PRIu64 " is %" PRId64 ", the vocabulary has 0 to %u%s", what,
                    index % length, index / length, id, vocab - 1, what[0] == 'l' ? "; -100 is not counted" : "");
}

strata_status strata_data_from_int64(const struct strata_model *model, const int64_t *ids, const int64_t *labels, bool shifted,
                                     uint32_t sequences, uint32_t length, int32_t *tokens, int32_t *targets)
{
    const uint64_t count = (uint64_t)sequences * length;
    uint32_t vocab;

    if (model == NULL || ids == NULL || tokens == NULL)
        return st_error_missing(__func__, model == NULL ? "model" : ids == NULL ? "ids" : "tokens");
    if (model->layers != NULL)
        return st_handle_check_decoder(model, __func__);
    vocab = st_model_config(model->model)->vocab;
    shifted = shifted && labels != NULL;
    labels = labels != NULL ? labels : ids;
    for (uint64_t i = 0; i < count; i++) {
        const bool counted = labels[i] != STRATA_LABEL_IGNORED;
        strata_status st = check_id("token", ids[i], vocab, i, length);

        if (st == STRATA_OK && targets != NULL && counted)
            st = check_id("label", labels[i], vocab, i, length);
        if (st != STRATA_OK)
            return st;
        tokens[i] = (int32_t)ids[i];
        if (targets == NULL)
            continue;
        if (shifted || i % length > 0)
            targets[shifted ? i : i - 1] = counted ? (int32_t)labels[i] : -1;
        if (!shifted && i % length == length - 1)
            targets[i] = -1;
    }
    return STRATA_OK;
}

double strata_data_bits_per_byte(const struct strata_data *data, double loss)
{
    const double bytes_per_token = data != NULL ? st_token_set_bytes_per_token(data->set) : 0;

    return bytes_per_token > 0 ? loss / (bytes_per_token * M_LN2) : (double)NAN;
}

void strata_data_close(struct strata_data *data)
{
    if (data == NULL)
        return;
    st_token_set_close(data->set);
    free(data->texts);
    free(data);
}
