/* cli/commands/generation.h - a model that continues texts: how it chooses tokens, the text so far, and what is printed of it.
 *
 * One text at a time.  cli_generation_answer() continues the prompt that it is given; what the model has already seen of it is
 * not computed again.  Several ranks compute the same text: rank 0 chooses each token, and only it prints. */
#ifndef CLI_COMMANDS_GENERATION_H
#define CLI_COMMANDS_GENERATION_H

#include "cli/run.h"
#include "core/base/print.h"
#include "strata/generate.h"
#include "strata/tokenizer.h"

/* What tokens are printed as. */
enum cli_prints { CLI_PRINTS_IDS, CLI_PRINTS_BYTES, CLI_PRINTS_TEXT };

struct cli_generation {
    const struct cli_args *args; /* borrowed */
    struct cli_run run;
    struct cli_progress progress;
    struct strata_tokenizer *tokenizer; /* NULL: bytes, or ids */
    enum cli_prints prints;
    struct strata_sampling sampling; /* from the model's files, overridden by the command line */

    struct strata_generation *generation;
    struct strata_generation_info now; /* the prompt and the answer so far; the signal that ended it, of any rank */
    double prompt_seconds, seconds;    /* of the prompt's forward pass; of everything after it */

    /* its text */
    bool shown; /* escape it for a terminal, which must not obey what a model generates; elsewhere bytes stay unchanged */
    struct strata_stream *stream; /* of the tokenizer; NULL without one */
    struct st_print_bytes bytes;
    char *text; /* [text_bytes] of the whole answer, as it was printed, and a NUL; NULL before the first token */
    size_t text_bytes, text_capacity;

    struct strata_engine_info info;   /* bytes moved by the forward passes */
    uint64_t rss_max, rss_peak_bytes; /* planned and measured */
};

/** Read the settings of the model's files; the command line overrides them. */
strata_status cli_generation_settings(struct cli_generation *g);
/** Allocate what answers need; the engine is there.  E_NOMEM. */
strata_status cli_generation_open(struct cli_generation *g);
void cli_generation_fini(struct cli_generation *g);
/** Whether this rank prints. */
bool cli_generation_speaks(const struct cli_generation *g);

/** Continue ids [count], fewer than the cache has room for, and print what comes as it comes.
 *  E_CANCELLED: a signal asked; what was made by then is the answer. */
strata_status cli_generation_answer(struct cli_generation *g, const int32_t *ids, uint32_t count);

/* generation_text.c */
/** Create the stream of a tokenizer, and forget the last answer's text. */
strata_status cli_generation_text_begin(struct cli_generation *g);
/** Print one token as soon as it is known; with JSON the text is printed at the end. */
strata_status cli_generation_text_put(struct cli_generation *g, int32_t token);
/** Print what was held back. */
strata_status cli_generation_text_end(struct cli_generation *g);
/** The answer's text, without zero bytes, which neither JSON nor a message can hold; NULL: there are only ids. */
const char *cli_generation_text(const struct cli_generation *g);

/* generation_report.c */
/** The end of an answer: its line, or its JSON; then its figures. */
void cli_generation_report(struct cli_generation *g);
/** How tokens are chosen, and where these settings come from. */
void cli_generation_report_settings(const struct cli_generation *g);

#endif
