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
/** Check that every token is in the vocabulary; E_INVAL. */
strata_status cli_prompt_check(const struct cli_prompt *p, const struct cli_args *args, uint32_t vocab);
void cli_prompt_fini(struct cli_prompt *p);

#endif
