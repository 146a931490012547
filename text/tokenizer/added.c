/* text/tokenizer/added.c - tokens found in the text itself: the leftmost, and the longest of those that begin there. */
#include "text/tokenizer/encode_internal.h"

#include <stdlib.h>

/* The child of a node for a byte; 0: none.  Node 0 is the root, whose children are in `first`. */
static uint32_t child_of(const struct st_trie *trie, uint32_t node, unsigned char byte)
{
    uint32_t child = node == 0 ? trie->first[byte] : trie->nodes[node].child;

    while (child != 0 && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

static uint32_t new_node(struct st_trie *trie, unsigned char byte)
{
    if (trie->count == 0)
        trie->count = 1; /* the root */
    if (!st_tokenizer_grow(&trie->nodes, &trie->capacity, trie->count + 1, sizeof(trie->nodes[0])))
        return 0;
    trie->nodes[trie->count] = (struct st_trie_node){.byte = byte};
    return (uint32_t)trie->count++;
}

bool st_trie_add(struct st_trie *trie, const char *text, size_t bytes, uint32_t token)
{
    uint32_t node = 0;

    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        uint32_t child = child_of(trie, node, byte);

        if (child == 0) {
            if ((child = new_node(trie, byte)) == 0)
                return false;
            if (node == 0) {
                trie->first[byte] = child;
            } else {
                trie->nodes[child].sibling = trie->nodes[node].child;
                trie->nodes[node].child = child;
            }
        }
        node = child;
    }
    if (node != 0)
        trie->nodes[node].token = token;
    return true;
}

uint32_t st_trie_longest(const struct st_trie *trie, const char *text, size_t bytes, size_t *length)
{
    uint32_t node = 0, best = 0;

    for (size_t i = 0; i < bytes; i++) {
        node = child_of(trie, node, (unsigned char)text[i]);
        if (node == 0)
            break;
        if (trie->nodes[node].token != 0) {
            best = trie->nodes[node].token;
            *length = i + 1;
        }
    }
    return best;
}

void st_trie_free(struct st_trie *trie)
{
    free(trie->nodes);
    *trie = (struct st_trie){0};
}

/* The character before `at`. */
static uint32_t code_before(const char *text, size_t at, size_t *begin)
{
    size_t length;

    do
        at--;
    while (((unsigned char)text[at] & 0xc0) == 0x80);
    *begin = at;
    return st_utf8_at(text + at, &length);
}

static bool word_before(const struct st_unicode *u, const char *text, size_t at)
{
    size_t begin;

    return at > 0 && (u->flags[code_before(text, at, &begin)] & ST_UC_WORD) != 0;
}

static bool flag_at(const struct st_unicode *u, const struct st_view *v, size_t at, unsigned flag, size_t *length)
{
    return at < v->bytes && (u->flags[st_utf8_at(v->text + at, length)] & flag) != 0;
}

bool st_added_find(struct st_found *out, const struct st_tokenizer *t, const struct st_trie *trie, const struct st_view *v,
                   size_t *at, size_t start, bool special_as_text)
{
    size_t length = 0, begin;

    while (*at < v->bytes) {
        const uint32_t token =
            trie->first[(unsigned char)v->text[*at]] == 0 ? 0 : st_trie_longest(trie, v->text + *at, v->bytes - *at, &length);
        const struct st_added *added = token == 0 ? NULL : &t->added[token - 1];

        if (added == NULL) {
            ++*at;
            continue;
        }
        *out = (struct st_found){*at, *at + length, token - 1};
        *at = out->end;
        if ((special_as_text && added->special) ||
            (added->single_word &&
             (word_before(t->unicode, v->text, out->begin) || flag_at(t->unicode, v, out->end, ST_UC_WORD, &length))))
            continue;
        while (added->lstrip && out->begin > start &&
               (t->unicode->flags[code_before(v->text, out->begin, &begin)] & ST_UC_SPACE) != 0)
            out->begin = begin;
        if (added->lstrip && out->begin < start)
            out->begin = start; /* what the one before took is gone */
        if (added->rstrip && out->end < start)
            out->end = start; /* up to there the one before has seen nothing but spaces */
        while (added->rstrip && flag_at(t->unicode, v, out->end, ST_UC_SPACE, &length))
            out->end += length;
        if (added->lstrip && out->begin >= out->end)
            continue;
        return true;
    }
    return false;
}
