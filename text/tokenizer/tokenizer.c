/* text/tokenizer/tokenizer.c - opens and closes tokenizers, and tells what they are. */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A hash of hashes: each thing that decides ids, in a fixed order. */
static void mix(uint64_t *hash, const void *data, size_t bytes)
{
    const uint64_t both[2] = {*hash, st_checksum64(data, bytes)};

    *hash = st_checksum64(both, sizeof(both));
}

static void mix_number(uint64_t *hash, uint64_t number)
{
    mix(hash, &number, sizeof(number));
}

static void mix_text(uint64_t *hash, const char *text, size_t bytes)
{
    mix_number(hash, bytes);
    mix(hash, text, bytes);
}

static void mix_model(uint64_t *hash, const struct st_bpe *bpe)
{
    uint64_t merges = 0;
    size_t bytes;

    for (uint32_t id = 0; id < bpe->vocab.limit; id++) {
        const char *text = st_vocab_text(&bpe->vocab, id, &bytes);

        if (text != NULL) {
            mix_number(hash, id);
            mix_text(hash, text, bytes);
        }
    }
    for (uint64_t i = 0; bpe->merges.slots != NULL && i <= bpe->merges.mask; i++)
        if (bpe->merges.slots[i].id != ST_TOKEN_NONE)
            merges += st_checksum64(&bpe->merges.slots[i], sizeof(bpe->merges.slots[i])); /* in any order */
    mix_number(hash, merges);
    mix_number(hash, bpe->unk);
    mix_number(hash, (uint64_t)bpe->byte_level | (uint64_t)bpe->byte_fallback << 1 | (uint64_t)bpe->fuse_unk << 2 |
                         (uint64_t)bpe->ignore_merges << 3);
}

static void mix_parts(uint64_t *hash, const struct st_tokenizer *t)
{
    for (uint32_t i = 0; i < t->normal_count; i++) {
        mix_number(hash, t->normals[i].kind);
        mix_text(hash, t->normals[i].pattern.text, t->normals[i].pattern.bytes);
        mix_text(hash, t->normals[i].content, t->normals[i].content_bytes);
        mix_number(hash, t->normals[i].pattern.regex != NULL);
    }
    for (uint32_t i = 0; i < t->pre_count; i++) {
        const struct st_pre *p = &t->pres[i];

        mix_number(hash, (uint64_t)p->kind | (uint64_t)p->behavior << 8 | (uint64_t)p->invert << 16 |
                             (uint64_t)p->add_prefix_space << 17 | (uint64_t)p->cuts << 18 | (uint64_t)p->scheme << 24 |
                             (uint64_t)(p->pattern.regex != NULL) << 32);
        mix_text(hash, p->pattern.text, p->pattern.bytes);
        mix_text(hash, p->replacement, p->replacement_bytes);
    }
    for (size_t i = 0; i < t->added_count; i++) {
        const struct st_added *a = &t->added[i];

        mix_text(hash, a->text, a->bytes);
        mix_number(hash, (uint64_t)a->id << 8 | (uint64_t)a->special | (uint64_t)a->normalized << 1 |
                             (uint64_t)a->single_word << 2 | (uint64_t)a->lstrip << 3 | (uint64_t)a->rstrip << 4);
    }
    mix(hash, t->prefix, t->prefix_count * sizeof(t->prefix[0]));
    mix(hash, t->suffix, t->suffix_count * sizeof(t->suffix[0]));
}

static strata_status index_added(struct st_tokenizer *t)
{
    t->vocab = t->bpe.vocab.limit > t->added_end ? t->bpe.vocab.limit : t->added_end;
    t->added_of_id = st_tokenizer_alloc(t->vocab, sizeof(t->added_of_id[0]));
    if (t->added_of_id == NULL)
        return st_nomem(0);
    for (size_t i = 0; i < t->added_count; i++)
        t->added_of_id[t->added[i].id] = (uint32_t)i + 1;
    return STRATA_OK;
}

static strata_status check_template(const struct st_tokenizer *t)
{
    for (uint32_t i = 0; i < t->prefix_count + t->suffix_count; i++) {
        const uint32_t id = i < t->prefix_count ? t->prefix[i] : t->suffix[i - t->prefix_count];
        size_t bytes;

        if (st_tokenizer_text(t, id, &bytes) == NULL)
            return st_error(STRATA_E_INPUT, "%s: post_processor: no token has the id %u", t->path, id);
    }
    return STRATA_OK;
}

/* As in the reference: the bytes of the character that represents the byte. */
static strata_status check_fallback(const struct st_tokenizer *t)
{
    for (unsigned byte = 0; t->bpe.byte_level && t->bpe.byte_fallback && byte < 256; byte++)
        if (t->bpe.byte_ids[byte] == ST_TOKEN_NONE)
            return st_error(STRATA_E_INPUT,
                            "%s: model: byte_fallback: not supported beside ByteLevel where byte 0x%02x has no token", t->path,
                            byte);
    return STRATA_OK;
}

static strata_status prepare(struct st_tokenizer *t)
{
    strata_status st;

    t->unicode = st_unicode_create();
    if (t->unicode == NULL || !st_bpe_prepare(&t->bpe))
        return st_nomem(0);
    if ((st = check_fallback(t)) != STRATA_OK)
        return st;
    if ((st = index_added(t)) != STRATA_OK || (st = st_cut_prepare(t)) != STRATA_OK || (st = check_template(t)) != STRATA_OK)
        return st;
    mix_model(&t->hash, &t->bpe);
    mix_parts(&t->hash, t);
    return STRATA_OK;
}

/* Kinds of tokenizer files, best first, with their readers. */
static const struct kind {
    const char *name;
    strata_status (*read)(struct st_tokenizer *t, const char *path);
} kinds[] = {
    {"tokenizer.json", st_tokenizer_read_json},
    {"tokenizer.model", st_tokenizer_read_proto},
    {"vocab.json", st_tokenizer_read_files},
};

/* What kind of file a path names: any that ends in .model or vocab.json is one, the rest is tokenizer.json's. */
static const struct kind *kind_of_file(const char *path)
{
    return st_path_ends(path, ".model") ? &kinds[1] : st_path_ends(path, kinds[2].name) ? &kinds[2] : &kinds[0];
}

/* The tokenizer's file: the path itself, or the first of those that a directory may have. */
static strata_status find_file(char file[ST_PATH_MAX], const struct kind **kind, const char *path)
{
    struct stat what;
    bool there;
    strata_status st;

    if (st_fault_refuses("tokenizer.stat") || stat(path, &what) != 0)
        return st_error_errno(errno, "%s", path);
    if (!S_ISDIR(what.st_mode)) {
        *kind = kind_of_file(path);
        return st_path_copy(file, path);
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        *kind = &kinds[i];
        if ((st = st_path_join(file, path, kinds[i].name)) != STRATA_OK || (st = st_file_find(&there, file)) != STRATA_OK ||
            there)
            return st;
    }
    return st_error(STRATA_E_INPUT, "%s has no tokenizer: no tokenizer.json, tokenizer.model or vocab.json", path);
}

strata_status st_tokenizer_exists(bool *there, const char *dir)
{
    struct stat what;
    char file[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    *there = false;
    if (!st_fault_refuses("tokenizer.stat") && stat(dir, &what) == 0 && !S_ISDIR(what.st_mode))
        return STRATA_OK; /* a file has none beside itself */
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && st == STRATA_OK && !*there; i++)
        if ((st = st_path_join(file, dir, kinds[i].name)) == STRATA_OK)
            st = st_file_find(there, file);
    return st;
}

static struct st_tokenizer *create(void)
{
    struct st_tokenizer *t = st_tokenizer_alloc(1, sizeof(*t));

    if (t == NULL)
        return NULL;
    t->bpe.unk = ST_TOKEN_NONE;
    for (unsigned i = 0; i < ST_TOKEN_ROLES; i++)
        t->roles[i] = ST_TOKEN_NONE;
    return t;
}

strata_status st_tokenizer_open(struct st_tokenizer **out, const char *path)
{
    struct st_tokenizer *t = create();
    const struct kind *kind = NULL;
    char file[ST_PATH_MAX];
    strata_status st;

    if (t == NULL)
        return st_nomem(0);
    st = find_file(file, &kind, path);
    if (st == STRATA_OK && (t->path = strdup(file)) == NULL)
        st = st_nomem(0);
    if (st == STRATA_OK)
        st = kind->read(t, t->path);
    if (st == STRATA_OK)
        st = prepare(t);
    if (st == STRATA_OK)
        st = st_tokenizer_read_roles(t);
    if (st != STRATA_OK) {
        st_tokenizer_close(t);
        return st;
    }
    *out = t;
    return STRATA_OK;
}

void st_tokenizer_close(struct st_tokenizer *t)
{
    if (t == NULL)
        return;
    free(t->path);
    st_unicode_destroy(t->unicode);
    st_bpe_free(&t->bpe);
    for (size_t i = 0; i < t->added_count; i++)
        free(t->added[i].text);
    free(t->added);
    free(t->added_of_id);
    st_vocab_free(&t->added_texts);
    st_trie_free(&t->trie);
    st_trie_free(&t->normal_trie);
    for (uint32_t i = 0; i < t->normal_count; i++) {
        st_pattern_free(&t->normals[i].pattern);
        free(t->normals[i].content);
    }
    for (uint32_t i = 0; i < t->pre_count; i++)
        st_pattern_free(&t->pres[i].pattern);
    for (uint32_t i = 0; i < t->decode_count; i++) {
        free(t->decodes[i].pattern);
        free(t->decodes[i].content);
    }
    free(t->cut.tokens.bits);
    free(t);
}

const char *st_tokenizer_path(const struct st_tokenizer *t)
{
    return t->path;
}

uint64_t st_tokenizer_hash(const struct st_tokenizer *t)
{
    return t->hash;
}

uint32_t st_tokenizer_vocab(const struct st_tokenizer *t)
{
    return t->vocab;
}

const struct st_added *st_tokenizer_added(const struct st_tokenizer *t, uint32_t id)
{
    return id < t->vocab && t->added_of_id[id] != 0 ? &t->added[t->added_of_id[id] - 1] : NULL;
}

uint32_t st_tokenizer_find(const struct st_tokenizer *t, const char *text)
{
    const uint32_t index = st_vocab_find(&t->added_texts, text, strlen(text));

    return index != ST_TOKEN_NONE ? t->added[index].id : st_vocab_find(&t->bpe.vocab, text, strlen(text));
}

const char *st_tokenizer_text(const struct st_tokenizer *t, uint32_t id, size_t *bytes)
{
    const struct st_added *added = st_tokenizer_added(t, id);

    if (added == NULL)
        return st_vocab_text(&t->bpe.vocab, id, bytes);
    *bytes = added->bytes;
    return added->text;
}

bool st_tokenizer_is_special(const struct st_tokenizer *t, uint32_t id)
{
    const struct st_added *added = st_tokenizer_added(t, id);

    return added != NULL && added->special;
}

uint32_t st_tokenizer_role(const struct st_tokenizer *t, enum st_token_role role)
{
    return t->roles[role];
}
