/* text/tokenizer/vocab.c - texts by id, ids by text, and what two tokens merge to.  Built by one thread, read by any. */
#include "text/tokenizer/tokenizer_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_FIRST 1024u

void *st_tokenizer_alloc(size_t count, size_t bytes_each)
{
    return st_fault("tokenizer.alloc", 0) < 0 ? NULL : calloc(count, bytes_each);
}

bool st_tokenizer_grow(void *array, size_t *capacity, size_t count, size_t bytes_each)
{
    size_t wanted = *capacity + *capacity / 2 + 16;
    void *old, *grown;

    if (count <= *capacity)
        return true;
    if (wanted < count)
        wanted = count;
    memcpy(&old, array, sizeof(old));
    grown = wanted > SIZE_MAX / bytes_each || st_fault("tokenizer.alloc", 0) < 0 ? NULL : realloc(old, wanted * bytes_each);
    if (grown == NULL)
        return false;
    memcpy(array, &grown, sizeof(grown));
    *capacity = wanted;
    return true;
}

/* The slot of a text, or the free one where it belongs. */
static uint32_t *find_slot(const struct st_vocab *v, const char *text, size_t bytes)
{
    uint32_t at = (uint32_t)st_checksum64(text, bytes);

    for (;; at++) {
        uint32_t *slot = &v->slots[at & v->slot_mask];

        if (*slot == 0)
            return slot;
        if (v->tokens[*slot - 1].bytes == bytes && memcmp(v->texts + v->tokens[*slot - 1].at, text, bytes) == 0)
            return slot;
    }
}

/* Twice the slots, at most half full. */
static bool grow_slots(struct st_vocab *v)
{
    const uint32_t slots = v->slots == NULL ? SLOTS_FIRST : 2 * (v->slot_mask + 1);
    uint32_t *old = v->slots;

    v->slots = st_tokenizer_alloc(slots, sizeof(v->slots[0]));
    if (v->slots == NULL) {
        v->slots = old;
        return false;
    }
    free(old);
    v->slot_mask = slots - 1;
    for (uint32_t id = 0; id < v->limit; id++)
        if (v->tokens[id].bytes != ST_TOKEN_NONE)
            *find_slot(v, v->texts + v->tokens[id].at, v->tokens[id].bytes) = id + 1;
    return true;
}

enum st_vocab_added st_vocab_add(struct st_vocab *v, uint32_t id, const char *text, size_t bytes)
{
    uint32_t *slot;

    assert(id < ST_TOKENIZER_VOCAB_MAX);
    if (id < v->limit && v->tokens[id].bytes != ST_TOKEN_NONE)
        return ST_VOCAB_ID_TWICE;
    if (v->text_bytes + bytes > UINT32_MAX / 2 || !st_tokenizer_grow(&v->texts, &v->text_capacity, v->text_bytes + bytes, 1) ||
        !st_tokenizer_grow(&v->tokens, &v->token_capacity, (size_t)id + 1, sizeof(v->tokens[0])))
        return ST_VOCAB_NO_MEMORY;
    if ((v->slots == NULL || 2 * (uint64_t)v->count >= v->slot_mask) && !grow_slots(v))
        return ST_VOCAB_NO_MEMORY;
    slot = find_slot(v, text, bytes);
    if (*slot != 0)
        return ST_VOCAB_TEXT_TWICE;
    for (; v->limit <= id; v->limit++)
        v->tokens[v->limit] = (struct st_vocab_token){0, ST_TOKEN_NONE};
    if (bytes > 0)
        memcpy(v->texts + v->text_bytes, text, bytes);
    v->tokens[id] = (struct st_vocab_token){(uint32_t)v->text_bytes, (uint32_t)bytes};
    v->text_bytes += bytes;
    v->count++;
    *slot = id + 1;
    return ST_VOCAB_ADDED;
}

uint32_t st_vocab_find(const struct st_vocab *v, const char *text, size_t bytes)
{
    return v->slots == NULL ? ST_TOKEN_NONE : *find_slot(v, text, bytes) - 1; /* 0 - 1 is ST_TOKEN_NONE */
}

const char *st_vocab_text(const struct st_vocab *v, uint32_t id, size_t *bytes)
{
    if (id >= v->limit || v->tokens[id].bytes == ST_TOKEN_NONE)
        return NULL;
    *bytes = v->tokens[id].bytes;
    return v->texts + v->tokens[id].at;
}

void st_vocab_free(struct st_vocab *v)
{
    free(v->texts);
    free(v->tokens);
    free(v->slots);
    *v = (struct st_vocab){0};
}

bool st_merges_reserve(struct st_merges *m, size_t count)
{
    uint64_t slots = 16;

    while (slots < 2 * (uint64_t)count)
        slots *= 2;
    m->slots = st_tokenizer_alloc(slots, sizeof(m->slots[0]));
    if (m->slots == NULL)
        return false;
    m->mask = slots - 1;
    for (uint64_t i = 0; i < slots; i++)
        m->slots[i].id = ST_TOKEN_NONE;
    return true;
}

void st_merges_put(struct st_merges *m, const struct st_merge *merge)
{
    struct st_merge *found = (struct st_merge *)(uintptr_t)st_merges_find(m, merge->left, merge->right);
    uint64_t slot = st_merge_slot(merge->left, merge->right);

    if (found == NULL) {
        while (m->slots[slot & m->mask].id != ST_TOKEN_NONE)
            slot++;
        found = &m->slots[slot & m->mask];
        m->count++;
    }
    *found = *merge;
}

void st_merges_free(struct st_merges *m)
{
    free(m->slots);
    *m = (struct st_merges){0};
}

bool st_pairs_create(struct st_pairs *p)
{
    p->bits = st_tokenizer_alloc((1u << ST_PAIR_BITS) / 64, sizeof(p->bits[0]));
    return p->bits != NULL;
}
