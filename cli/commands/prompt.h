/* cli/commands/prompt.h - the prompt that generation continues: its tokens, or the text of a message. */
#ifndef CLI_COMMANDS_PROMPT_H
#define CLI_COMMANDS_PROMPT_H

#include "cli/options/args.h"

#define CLI_PROMPT_BYTES_MAX (1u << 20) /* more than any context */

struct strata_tokenizer;

struct cli_prompt {
    int32_t *tokens; /* [count]; owned */
    uint32_t count;
    char *text; /* with --chat: the message, instead of tokens; owned */
};

/** From --prompt, --prompt-file or --prompt-tokens.
 *  @param tokenizer  NULL: the text's bytes
 *  E_INVAL: not a list of ids.  E_INPUT: a file that cannot be read, is empty, longer than any context, or no message. */
strata_status cli_prompt_read(struct cli_prompt *p, const struct cli_args *args, struct strata_tokenizer *tokenizer);
/** Check that the model has a row for each of ids [count]; E_INVAL.
 *  @param what       that they are of, for people
 *  @param tokenizer  that knows their texts; NULL: they are what was given */
strata_status cli_prompt_check(const int32_t *ids, uint32_t count, uint32_t vocab, const char *what,
                               struct strata_tokenizer *tokenizer);
void cli_prompt_fini(struct cli_prompt *p);

#endif
