/* api/door_tokenizer_train.c - strata/tokenizer.h: a tokenizer of one's own, made of texts. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "strata/tokenizer.h"
#include "text/data/texts.h"
#include "text/tokenizer/train.h"

static strata_status feed(void *context, const char *text, size_t bytes)
{
    return st_train_feed(context, text, bytes);
}

static strata_status end_text(void *context)
{
    return st_train_end_text(context);
}

static strata_status check(const char *const *paths, uint32_t count, const char *dir, const struct strata_trained *trained)
{
    static const char name[] = "strata_tokenizer_train";

    if (paths == NULL || dir == NULL)
        return st_error_missing(name, paths == NULL ? "paths" : "dir");
    if (count == 0)
        return st_error(STRATA_E_INVAL, "%s: count is 0: name a text", name);
    for (uint32_t i = 0; i < count; i++)
        if (paths[i] == NULL)
            return st_error_missing(name, "one of paths");
    return trained != NULL ? st_handle_room(trained, sizeof(*trained), "strata_trained") : STRATA_OK;
}

strata_status strata_tokenizer_train(const char *const *paths, uint32_t count, uint32_t vocab, const char *dir, bool overwrite,
                                     struct strata_trained *trained)
{
    struct st_texts texts = {.paths = paths, .count = count, .part = feed, .end = end_text};
    struct st_train_report report;
    struct st_train *train;
    strata_status st = check(paths, count, dir, trained);

    if (st != STRATA_OK || (st = st_train_create(&train)) != STRATA_OK)
        return st;
    texts.context = train;
    st = st_texts_read(&texts);
    if (st == STRATA_OK)
        st = st_train_write(train, vocab, dir, overwrite, &report);
    st_train_destroy(train);
    if (st != STRATA_OK)
        return st;
    if (report.vocab < vocab)
        st_log(ST_LOG_NOTICE, "the text gives %u tokens, not %u: no other pair occurs twice", report.vocab, vocab);
    if (trained != NULL) {
        trained->vocab = report.vocab;
        trained->words = report.words;
        trained->different_words = report.different_words;
    }
    return STRATA_OK;
}
