/* cli/commands/chat.h - a conversation: messages from standard input, answers to standard output. */
#ifndef CLI_COMMANDS_CHAT_H
#define CLI_COMMANDS_CHAT_H

#include "cli/commands/generation.h"

#define CLI_CHAT_TOKENS_DEFAULT 4096u /* of a conversation, where the model has room for them */

/** Begin one, with --system, by the template of the tokenizer's directory or of --template.
 *  @param chat  out, returned: closed by strata_chat_close() */
strata_status cli_chat_open(struct strata_chat **chat, const struct cli_generation *g);
/** Answer one message after the other until there are no more; the engine has its weights.
 *  @param only  the one message there is; NULL: the lines of standard input
 *  @return E_CANCELLED: a signal ended it, and cli_signals_pending() says which */
strata_status cli_chat_talk(struct strata_chat *chat, struct cli_generation *g, const char *only);

#endif
