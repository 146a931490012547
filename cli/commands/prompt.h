/* cli/commands/prompt.h - the tokens of the prompt that generation continues. */
#ifndef CLI_COMMANDS_PROMPT_H
#define CLI_COMMANDS_PROMPT_H

#include "cli/options/args.h"

#define CLI_BYTE_VOCAB 256u /* vocabulary of models that read bytes: the token is the byte */

struct cli_prompt {
    int32_t *tokens; /* [count]; owned */
    uint32_t count;
};

/** From --prompt, --prompt-file or --prompt-tokens.  E_INVAL: not a list of ids.  E_INPUT: a file that cannot be read, is
 *  empty or longer than any context. */
strata_status cli_prompt_read(struct cli_prompt *p, const struct cli_args *args);
/** Check that every token is in the vocabulary; E_INVAL. */
strata_status cli_prompt_check(const struct cli_prompt *p, uint32_t vocab);
void cli_prompt_fini(struct cli_prompt *p);

#endif
