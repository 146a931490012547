/* strata/tokenizer.h - text to the tokens of a model and back, and conversations to the text that a model was taught.
 *
 *     strata_tokenizer_open(&tokenizer, "./Llama-3.2-1B-Instruct");
 *     strata_tokenizer_encode(tokenizer, "And God said", 12, NULL, &ids, &count);
 *     strata_tokenizer_decode(tokenizer, ids, count, true, &text, &bytes);
 *
 *     strata_chat_open(&chat, tokenizer, NULL);            the template of the directory
 *     strata_chat_add(chat, "user", "Who are you?");
 *     strata_chat_tokens(chat, &ids, &count);              what the model continues
 *     ... each new token: strata_stream_push(stream, id, &text, &bytes) ...
 *     strata_chat_add(chat, "assistant", answer);
 *
 * Tokens are those of the Python library tokenizers, texts those of transformers' apply_chat_template(); docs/data.md names the
 * versions and the differences.
 *
 * Arrays and texts that a call gives are borrowed: they stay valid until the next call on the same handle, or until it is closed.
 * A tokenizer is shared by its streams and chats: close them in any order.
 *
 * Thread  one call at a time on one handle, from any thread; streams and chats of one tokenizer are independent. */
#ifndef STRATA_TOKENIZER_H
#define STRATA_TOKENIZER_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_tokenizer;
struct strata_stream; /**< tokens to text, one by one */
struct strata_chat;   /**< a conversation and the template that writes it */

/** Whether a directory has the files of a tokenizer: tokenizer.json, tokenizer.model, or vocab.json with merges.txt.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or the name is too long
 *          STRATA_E_INPUT  the directory may not be searched */
STRATA_API strata_status strata_tokenizer_exists(bool *there, const char *dir);

/**
 * Open a tokenizer.
 *
 * @param tokenizer  out, returned: closed by strata_tokenizer_close()
 * @param path       a model's directory, a checkpoint, or a tokenizer's file; copied
 *
 * @return STRATA_E_INVAL  an argument is NULL, or the name is too long
 *         STRATA_E_INPUT  no tokenizer there, or one that asks for what is not supported; the sentence names file and field
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_tokenizer_open(struct strata_tokenizer **tokenizer, const char *path);

/** Facts about a tokenizer. */
struct strata_tokenizer_info {
    size_t info_size; /**< sizeof(struct strata_tokenizer_info), set by the caller */
    uint32_t vocab;   /**< tokens are below it; a model's vocabulary may be larger, or smaller: it has no rows for some then */
    int32_t bos, eos; /**< the tokens that begin and end a text; -1: no file says */
    uint64_t hash;    /**< equal for tokenizers that give the same tokens */
};
#define STRATA_TOKENIZER_INFO_INIT STRATA_INIT(strata_tokenizer_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_tokenizer_get_info(const struct strata_tokenizer *tokenizer, struct strata_tokenizer_info *info);

/** How a text is encoded.  Begin with STRATA_ENCODE_OPTS_INIT, or pass NULL. */
struct strata_encode_opts {
    size_t opts_size;     /**< sizeof(struct strata_encode_opts) */
    bool add_special;     /**< also what the tokenizer puts before and after a text, such as its first token */
    bool special_as_text; /**< "<|im_end|>" in the text is text, not the token */
};
#define STRATA_ENCODE_OPTS_INIT STRATA_INIT(strata_encode_opts, opts_size)

/**
 * Tokens of a text.
 *
 * @param text   [bytes] borrowed during the call.  Bytes that are not UTF-8 count as U+FFFD
 * @param opts   NULL: all defaults
 * @param ids    [*count] int32, out, borrowed; never NULL
 *
 * @return STRATA_E_INVAL  an argument is NULL, or opts_size is another one
 *         STRATA_E_INPUT  more than 256 MiB without a place where they could be cut
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_tokenizer_encode(struct strata_tokenizer *tokenizer, const char *text, size_t bytes,
                                                 const struct strata_encode_opts *opts, const int32_t **ids, size_t *count);

/**
 * The text of tokens; tokens that the tokenizer does not have are left out.
 *
 * @param ids           [count] int32; borrowed during the call
 * @param skip_special  leave special tokens out
 * @param text          [*bytes] UTF-8 without a NUL, out, borrowed; never NULL
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_tokenizer_decode(struct strata_tokenizer *tokenizer, const int32_t *ids, size_t count,
                                                 bool skip_special, const char **text, size_t *bytes);

/** Close; its streams and chats stay valid.  NULL is fine. */
STRATA_API void strata_tokenizer_close(struct strata_tokenizer *tokenizer);

/**
 * Begin to decode tokens one by one.
 *
 * @param stream        out, returned: closed by strata_stream_close()
 * @param tokenizer     shared: may be closed from here on
 * @param skip_special  leave special tokens out
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_stream_open(struct strata_stream **stream, struct strata_tokenizer *tokenizer, bool skip_special);

/**
 * The text that one more token adds.  What later tokens could change is held back: an incomplete character, spaces that may be
 * cut.
 *
 * @param text  [*bytes] whole UTF-8 characters without a NUL, possibly none, out, borrowed; never NULL
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_stream_push(struct strata_stream *stream, int32_t id, const char **text, size_t *bytes);

/** What is still held back; the next push begins another text.  The texts of all calls together are what
 *  strata_tokenizer_decode() gives for the tokens.
 *
 *  @return as strata_stream_push() */
STRATA_API strata_status strata_stream_finish(struct strata_stream *stream, const char **text, size_t *bytes);

/** Close; NULL is fine. */
STRATA_API void strata_stream_close(struct strata_stream *stream);

/** How conversations are written.  Begin with STRATA_CHAT_OPTS_INIT, or pass NULL; texts are copied. */
struct strata_chat_opts {
    size_t opts_size; /**< sizeof(struct strata_chat_opts) */
    /** A built-in template (chatml, llama2, llama3, mistral, qwen, gemma, alpaca) or a file with one in Jinja; NULL: the
     *  directory's, chat_template.jinja or that in tokenizer_config.json. */
    const char *chat_template;
    const char *date;                 /**< what a template takes for today: "2026-07-31"; NULL: today */
    const char *chat_template_kwargs; /**< as in struct strata_texts_opts */
};
#define STRATA_CHAT_OPTS_INIT STRATA_INIT(strata_chat_opts, opts_size)

/**
 * Begin a conversation.
 *
 * @param chat       out, returned: closed by strata_chat_close()
 * @param tokenizer  shared: may be closed from here on
 * @param opts       NULL: all defaults
 *
 * @return STRATA_E_INVAL   an argument is NULL, the date is none, or opts_size is another one
 *         STRATA_E_INPUT   no template: the sentence names the built-in ones
 *         STRATA_E_CONFIG  a template that is not valid, or uses what is not supported; the sentence names its line
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_chat_open(struct strata_chat **chat, struct strata_tokenizer *tokenizer,
                                          const struct strata_chat_opts *opts);

/**
 * Add a message.
 *
 * @param role     "system", "user", "assistant", or what else the template knows; copied
 * @param content  copied; bytes that are not UTF-8 become U+FFFD
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_chat_add(struct strata_chat *chat, const char *role, const char *content);

/**
 * The tokens of the conversation, as the template writes it with the beginning of the assistant's next message.  All of them: a
 * model that has seen the first ones needs only the rest.
 *
 * @param ids  [*count] int32, out, borrowed; never NULL
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_INPUT  the template refuses the conversation, or a limit; the sentence names template and line
 *         STRATA_E_NOSYS  the template uses what is not supported
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_chat_tokens(struct strata_chat *chat, const int32_t **ids, size_t *count);

/** The special token that the template puts after an assistant's message, where the model is to stop; -1: none is known, or chat
 *  is NULL. */
STRATA_API int32_t strata_chat_end(const struct strata_chat *chat);

/** Close; NULL is fine. */
STRATA_API void strata_chat_close(struct strata_chat *chat);

#ifdef __cplusplus
}
#endif
#endif
