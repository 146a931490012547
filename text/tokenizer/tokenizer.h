/* text/tokenizer/tokenizer.h - text to token ids and back, as the tokenizer files of a model's directory say.
 *
 *     st_tokenizer_open(&t, "Llama-3.2-1B");
 *     st_encoder_create(&e, t);
 *     st_encode(e, text, bytes, NULL, &out);          ids out.ids[0 .. out.count), where each lies in the text
 *     st_decode(t, out.ids, out.count, 0, &back);     the bytes that they stand for
 *
 * The ids are those of Tokenizer.from_file() of the Python library tokenizers (docs/data.md names the version and the differences
 * to AutoTokenizer).  A tokenizer does not change after it was opened: any number of threads may use one, each with its encoder
 * or decoder.  What a file asks for and this library cannot do is refused, by name. */
#ifndef TEXT_TOKENIZER_TOKENIZER_H
#define TEXT_TOKENIZER_TOKENIZER_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TOKEN_NONE          UINT32_MAX
#define ST_TOKENIZER_VOCAB_MAX (1u << 22) /* ids are below this */

struct st_tokenizer;

/** Open a directory (tokenizer.json; else tokenizer.model; else vocab.json and merges.txt) or one such file; which tokens begin
 * and end a text is read from tokenizer_config.json and special_tokens_map.json beside it, where they exist. E_INPUT: nothing
 * there, not a tokenizer, or one that asks for what is not supported; the sentence names file and field. */
strata_status st_tokenizer_open(struct st_tokenizer **out, const char *path);
void st_tokenizer_close(struct st_tokenizer *t);
/** Whether a directory has a file that st_tokenizer_open() would read, whatever is in it. */
strata_status st_tokenizer_exists(bool *there, const char *dir);

/** The file that was opened. */
const char *st_tokenizer_path(const struct st_tokenizer *t);
/** Equal for two tokenizers whose files say the same about ids; formatting and names do not count. */
uint64_t st_tokenizer_hash(const struct st_tokenizer *t);
/** The largest id + 1.  A model's table may have more rows. */
uint32_t st_tokenizer_vocab(const struct st_tokenizer *t);
/** The id of a token by its text as the file writes it ("<|im_end|>", "Ġthe"); ST_TOKEN_NONE: there is none. */
uint32_t st_tokenizer_find(const struct st_tokenizer *t, const char *text);
/** A token's text as the file writes it, not NUL-terminated; NULL: no such id. */
const char *st_tokenizer_text(const struct st_tokenizer *t, uint32_t id, size_t *bytes);
/** Whether this is an added token marked special: a text never means it by accident, and readers need not see it. */
bool st_tokenizer_is_special(const struct st_tokenizer *t, uint32_t id);

/* The roles that a directory's files give to tokens; generation_config.json may name more ends (model/hf/generation.h). */
enum st_token_role { ST_TOKEN_BOS, ST_TOKEN_EOS, ST_TOKEN_UNK, ST_TOKEN_PAD, ST_TOKEN_ROLES };
/** ST_TOKEN_NONE: no file says. */
uint32_t st_tokenizer_role(const struct st_tokenizer *t, enum st_token_role role);
/** The special token to which generation_config.json, else config.json, beside the tokenizer's file gives a role (bos_token_id
 * ...); of a list the first.  *id ST_TOKEN_NONE: neither does.  E_INPUT: such a file cannot be read. */
strata_status st_tokenizer_role_beside(uint32_t *id, const struct st_tokenizer *t, enum st_token_role role);

/* The tokens at which generation stops. */
#define ST_TOKEN_ENDS_MAX 64u
struct st_token_ends {
    uint32_t ids[ST_TOKEN_ENDS_MAX], count;
};
/** The tokenizer's end of text and every eos_token_id of generation_config.json and config.json beside its file.  E_INPUT: a file
 *  is no JSON object; what is no token of this tokenizer, and ids beyond the first ST_TOKEN_ENDS_MAX, are left out.  E_NOMEM. */
strata_status st_tokenizer_ends(struct st_token_ends *out, const struct st_tokenizer *t);
bool st_token_is_end(const struct st_token_ends *ends, uint32_t id);

/* Ids, and the bytes [begins[i], ends[i]) of the original text that each stands for.  The first and the last byte of what an id
 * covers; where one character became several ids, or several characters one, ranges overlap.  Added special tokens of the
 * post-processor cover nothing (begin == end).  Starts as {0}; grows; freed by its owner. */
struct st_encoding {
    uint32_t *ids;
    uint64_t *begins, *ends;
    size_t count, capacity;
};
void st_encoding_free(struct st_encoding *out);
/** One id more, which stands for nothing behind the text of the last one.  E_NOMEM. */
strata_status st_encoding_add(struct st_encoding *out, uint32_t id);

struct st_encode_opts {
    bool add_special;     /* what the post-processor adds before and after the text */
    bool special_as_text; /* "<|im_end|>" in the text is text, not a token (the reference's encode_special_tokens) */
};

/* One thread's scratch: a buffer, a cache of words.  Bytes that are not UTF-8 count as U+FFFD, one per maximal subpart. */
struct st_encoder;
strata_status st_encoder_create(struct st_encoder **out, const struct st_tokenizer *t); /* t: borrowed */
void st_encoder_destroy(struct st_encoder *e);

/** Ids of a whole text, after those that `out` has.  opts NULL: all false.  E_NOMEM; E_INPUT: more than ST_ENCODER_HELD_MAX bytes
 *  without a place where they could be cut. */
strata_status st_encode(struct st_encoder *e, const char *text, size_t bytes, const struct st_encode_opts *opts,
                        struct st_encoding *out);

/* The same in parts, with bounded memory: begin, feed ..., finish.  Parts may end anywhere, even within a character.  Ids are
 * added to `out` as soon as what follows cannot change them; the caller may empty it (count = 0) between calls. */
#define ST_ENCODER_HELD_MAX (256u << 20)
void st_encode_begin(struct st_encoder *e, const struct st_encode_opts *opts);
strata_status st_encode_feed(struct st_encoder *e, const char *text, size_t bytes, struct st_encoding *out);
strata_status st_encode_finish(struct st_encoder *e, struct st_encoding *out);
/** How often U+FFFD took the place of bytes, since begin. */
uint64_t st_encoder_replaced(const struct st_encoder *e);

/* Bytes that ids stand for: UTF-8.  Starts as {0}; grows; freed by its owner. */
struct st_decoded {
    char *bytes;
    size_t count, capacity;
};
void st_decoded_free(struct st_decoded *out);

/** The text of ids, after what `out` has.  Ids that no token has are left out.  @param skip_special  leave special tokens out */
strata_status st_decode(const struct st_tokenizer *t, const uint32_t *ids, size_t count, bool skip_special,
                        struct st_decoded *out);

/* The same id by id, as a model writes them.  What a later id could still change is held back: an incomplete character, a run of
 * byte tokens, spaces that a Strip may cut; finish gives the rest, and begins anew. */
struct st_decoder;
strata_status st_decoder_create(struct st_decoder **out, const struct st_tokenizer *t, bool skip_special);
void st_decoder_destroy(struct st_decoder *d);
strata_status st_decoder_push(struct st_decoder *d, uint32_t id, struct st_decoded *out);
strata_status st_decoder_finish(struct st_decoder *d, struct st_decoded *out);

#endif
