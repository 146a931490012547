/* manifest.c - see manifest.h.  The text as a whole: its checksum, and whether what the tables read can be. */
#include "offload/checkpoint/manifest_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "nvme/swap/swap.h"

#include <stdlib.h>
#include <string.h>

#define CHECKSUM_KEY ",\"checksum\":\""
#define CHECKSUM_END "\"}\n"
#define TAIL_BYTES   (sizeof(CHECKSUM_KEY) - 1 + 32 + sizeof(CHECKSUM_END) - 1)
#define OWN_MEMBERS  5u /* format_version, strata, stripe, config, checksum */
#define ELEMS_MOST   (UINT64_C(1) << 50)
#define UNIT_MOST    (UINT32_C(1) << 30)

strata_status st_manifest_damaged(const char *name, const char *key, const char *what)
{
    return st_error(STRATA_E_CORRUPT, "%s: %s %s: this checkpoint is damaged, or of another version of strata", name, key, what);
}

/* --- whether it can be --- */

static strata_status check_groups(const struct st_manifest *m, const char *name)
{
    uint32_t page = 0, in_page = 0;
    uint64_t end = 0;

    for (uint32_t i = 0; i < m->group_count; i++) {
        const struct st_manifest_group *g = &m->groups[i];

        if (i > 0 && g->page == page + 1) {
            page++;
            in_page = 0;
            end = 0;
        }
        if (g->page != page || ++in_page > ST_GROUPS_MAX || g->offset % ST_PAGE_ALIGN != 0 || g->offset < end || g->elems == 0 ||
            g->offset > ELEMS_MOST || g->elems > ELEMS_MOST)
            return st_manifest_damaged(name, "groups", "are none of a model's pages");
        end = g->offset + g->elems;
    }
    return m->group_count > 0 && page + 1 == m->page_count ? STRATA_OK
                                                           : st_manifest_damaged(name, "groups", "are not those of all pages");
}

/* Every element of a tensor lies in a group of its page. */
static bool is_in_group(const struct st_manifest *m, const struct st_manifest_tensor *t)
{
    const struct st_manifest_group *g;

    if (t->elems == 0 || t->elems > ELEMS_MOST || t->offset > ELEMS_MOST)
        return false;
    for (uint32_t i = 0; (g = st_manifest_group(m, t->page, i)) != NULL; i++)
        if (t->offset >= g->offset && t->offset + t->elems <= g->offset + g->elems)
            return true;
    return false;
}

static strata_status check_tensors(const struct st_manifest *m, const char *name)
{
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (!is_in_group(m, &m->tensors[i]))
            return st_manifest_damaged(name, "tensors", "are not in the groups of the model");
    return STRATA_OK;
}

/* A name of ours in the checkpoint's directory: no path leads out of it. */
static bool is_file_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL;
}

/* Files of one part. */
static uint32_t files_of_part(const struct st_manifest *m)
{
    uint32_t files = 0;

    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++)
        files += m->space_bytes[space] > 0 ? m->stripe.dir_count : 0;
    return files;
}

uint32_t st_manifest_parts(const struct st_manifest *m)
{
    const uint32_t files = files_of_part(m);

    return files > 0 && m->file_count > files ? m->file_count / files : 1;
}

static strata_status check_files(const struct st_manifest *m, const char *name)
{
    const uint32_t parts = st_manifest_parts(m), wanted = parts * files_of_part(m);

    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++) {
        if (m->space_bytes[space] % ST_SWAP_ALIGN != 0 || m->space_bytes[space] > ELEMS_MOST)
            return st_manifest_damaged(name, "storage", "has an impossible size");
    }
    for (uint32_t i = 0; i < m->file_count; i++) {
        const struct st_manifest_file *f = &m->files[i];

        if (f->space == ST_SPACE_SCRATCH || f->dir >= parts * m->stripe.dir_count || !is_file_name(f->name) ||
            st_manifest_file(m, f->space, f->dir) != f ||
            f->bytes != st_stripe_file_bytes(&m->stripe, f->dir % m->stripe.dir_count, m->space_bytes[f->space]))
            return st_manifest_damaged(name, "files", "do not hold what storage says");
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(m->files[j].name, f->name) == 0)
                return st_manifest_damaged(name, "files", "has a name twice");
    }
    if (m->file_count != wanted)
        return st_manifest_damaged(name, "files", "are not all that storage says");
    return parts == 1 || parts == m->world ? STRATA_OK
                                           : st_manifest_damaged(name, "files", "are not those of the run's processes");
}

static strata_status check(const struct st_manifest *m, const char *name)
{
    strata_status st;

    if (m->world < 1 || m->world > ST_MANIFEST_PARTS_MAX)
        return st_manifest_damaged(name, "run", "has an impossible number of processes");
    if (m->leaves == 0)
        return st_manifest_damaged(name, "leaves", "has an impossible value");
    if (m->moments < 1 || m->moments > 2)
        return st_manifest_damaged(name, "moments", "has an impossible value");
    if (strlen(m->run) != sizeof(m->run) - 1 || strspn(m->run, "0123456789abcdef") != sizeof(m->run) - 1)
        return st_manifest_damaged(name, "id", "has an impossible value");
    if ((st = check_groups(m, name)) != STRATA_OK || (st = check_tensors(m, name)) != STRATA_OK)
        return st;
    return check_files(m, name);
}

/* --- the stripe, by the directory of each of its slots --- */

static void put_stripe(struct st_json_writer *w, const struct st_stripe *stripe)
{
    char text[ST_STRIPE_SLOTS_MAX + 1] = "";

    for (uint32_t i = 0; i < stripe->slot_count; i++)
        text[i] = (char)('0' + stripe->dir_of[i]);
    st_json_put_string(w, "stripe", text);
}

static bool stripe_read(struct st_stripe *stripe, const char *text)
{
    const size_t slots = strlen(text);

    if (slots == 0 || slots > ST_STRIPE_SLOTS_MAX || strspn(text, "01234567") != slots || stripe->unit_bytes == 0 ||
        stripe->unit_bytes > UNIT_MOST || stripe->unit_bytes % ST_SWAP_ALIGN != 0)
        return false;
    stripe->slot_count = (uint32_t)slots;
    for (size_t i = 0; i < slots; i++) {
        const uint8_t dir = (uint8_t)(text[i] - '0');

        stripe->dir_of[i] = dir;
        stripe->rank[i] = stripe->weight[dir]++;
        if (dir >= stripe->dir_count)
            stripe->dir_count = dir + 1u;
    }
    for (uint32_t dir = 0; dir < stripe->dir_count; dir++)
        if (stripe->weight[dir] == 0)
            return false;
    return true;
}

/* --- text --- */

static strata_status digest_of(char digest[ST_DIGEST_TEXT], const char *text, uint64_t bytes)
{
    struct st_digest *d;
    const strata_status st = st_digest_create(&d);

    if (st != STRATA_OK)
        return st;
    st_digest_update(d, text, bytes);
    st_digest_hex(d, digest);
    st_digest_destroy(d);
    return STRATA_OK;
}

static strata_status write_text(FILE *file, char **text, size_t *bytes, const struct st_manifest *m)
{
    struct st_json_writer w;
    char digest[ST_DIGEST_TEXT];
    strata_status st;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_u64(&w, "format_version", ST_MANIFEST_VERSION);
    st_json_put_string(&w, "strata", m->version);
    st_manifest_put(&w, m);
    put_stripe(&w, &m->stripe);
    st_json_put_string(&w, "config", m->config);
    if (fflush(file) != 0)
        return st_nomem(0);
    if ((st = digest_of(digest, *text, *bytes)) != STRATA_OK)
        return st;
    st_json_put_string(&w, "checksum", digest);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return STRATA_OK;
}

strata_status st_manifest_text(char **text, uint64_t *bytes, const struct st_manifest *m)
{
    char *made = NULL;
    size_t size = 0;
    FILE *file = st_fault_refuses("manifest.stream") ? NULL : open_memstream(&made, &size);
    struct st_manifest again;
    strata_status st = file == NULL ? st_nomem(0) : write_text(file, &made, &size, m);

    if (file != NULL && fclose(file) != 0 && st == STRATA_OK)
        st = st_nomem(0);
    if (st == STRATA_OK && (st = st_manifest_parse(&again, made, size, "the manifest to be written")) == STRATA_OK)
        st_manifest_fini(&again);
    if (st != STRATA_OK) {
        free(made);
        return st == STRATA_E_CORRUPT ? STRATA_E_INVAL : st;
    }
    *text = made;
    *bytes = size;
    return STRATA_OK;
}

/* The last member is the checksum of all before it, in one spelling. */
static strata_status check_text(const char *text, uint64_t bytes, const char *name)
{
    const uint64_t end = bytes > TAIL_BYTES ? bytes - TAIL_BYTES : 0;
    char digest[ST_DIGEST_TEXT], tail[TAIL_BYTES + 1];
    strata_status st;

    if (end == 0)
        return st_manifest_damaged(name, "its end", "is missing");
    if ((st = digest_of(digest, text, end)) != STRATA_OK)
        return st;
    snprintf(tail, sizeof(tail), CHECKSUM_KEY "%s" CHECKSUM_END, digest);
    return memcmp(tail, text + end, TAIL_BYTES) == 0 ? STRATA_OK : st_manifest_damaged(name, "its checksum", "is wrong");
}

static strata_status string_of(const char **text, const st_json *root, const char *key, const char *name)
{
    const st_json *node = st_json_get(root, key);

    if (node == NULL || st_json_type(node) != ST_JSON_STRING)
        return st_manifest_damaged(name, key, "is missing");
    *text = st_json_string(node);
    return STRATA_OK;
}

static strata_status read_root(struct st_manifest *m, const st_json *root, const char *name)
{
    const char *version = "", *stripe = "", *config = "";
    uint64_t format = 0;
    uint32_t members = 0;
    strata_status st;

    if (st_json_type(root) != ST_JSON_OBJECT)
        return st_manifest_damaged(name, "it", "is no object");
    if (st_json_get(root, "format_version") == NULL || !st_json_u64(st_json_get(root, "format_version"), &format) ||
        format != ST_MANIFEST_VERSION)
        return st_error(STRATA_E_CORRUPT, "%s: format version %llu, this strata reads %u: use the strata that wrote it", name,
                        (unsigned long long)format, ST_MANIFEST_VERSION);
    for (const st_json *child = st_json_first(root); child != NULL; child = st_json_next(child))
        members++;
    if (members != st_manifest_members() + OWN_MEMBERS)
        return st_manifest_damaged(name, "it", "has members that this version does not know");
    if ((st = string_of(&version, root, "strata", name)) != STRATA_OK ||
        (st = string_of(&stripe, root, "stripe", name)) != STRATA_OK ||
        (st = string_of(&config, root, "config", name)) != STRATA_OK || (st = st_manifest_get(m, root, name)) != STRATA_OK)
        return st;
    if (strlen(version) >= sizeof(m->version) || !stripe_read(&m->stripe, stripe))
        return st_manifest_damaged(name, "stripe", "has an impossible value");
    memcpy(m->version, version, strlen(version) + 1);
    m->config = st_fault("manifest.alloc", 0) < 0 ? NULL : strdup(config);
    return m->config != NULL ? check(m, name) : st_nomem(0);
}

strata_status st_manifest_parse(struct st_manifest *out, const char *text, uint64_t bytes, const char *name)
{
    struct st_manifest m = {0};
    st_json *root = NULL;
    strata_status st = check_text(text, bytes, name);

    if (st == STRATA_OK && (st = st_json_parse(&root, text, bytes, name)) == STRATA_E_CONFIG)
        st = STRATA_E_CORRUPT;
    if (st == STRATA_OK)
        st = read_root(&m, root, name);
    st_json_free(root);
    if (st != STRATA_OK) {
        st_manifest_fini(&m);
        return st;
    }
    *out = m;
    return STRATA_OK;
}

strata_status st_manifest_read(struct st_manifest *out, const char *path)
{
    char *text;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, path, ST_MANIFEST_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    st = st_manifest_parse(out, text, bytes, path);
    free(text);
    return st;
}

void st_manifest_fini(struct st_manifest *m)
{
    free(m->groups);
    free(m->tensors);
    free(m->data);
    free(m->files);
    free(m->config);
    *m = (struct st_manifest){0};
}

/* --- looking up --- */

const struct st_manifest_group *st_manifest_group(const struct st_manifest *m, uint32_t page, uint32_t group)
{
    uint32_t low = 0, high = m->group_count;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (m->groups[middle].page < page)
            low = middle + 1;
        else
            high = middle;
    }
    if (group >= m->group_count - low || m->groups[low + group].page != page)
        return NULL;
    return &m->groups[low + group];
}

bool st_manifest_has_plane(const struct st_manifest *m, const struct st_manifest_group *g, enum st_plane plane)
{
    if (plane == ST_PLANE_WEIGHT)
        return true;
    if (g->kind == ST_GROUP_FROZEN || (plane == ST_PLANE_MOMENT2 && m->moments < 2))
        return false;
    return plane != ST_PLANE_MASTER || st_master_of(g->format) != ST_MASTER_WEIGHT;
}

const struct st_manifest_file *st_manifest_file(const struct st_manifest *m, enum st_space space, uint32_t dir)
{
    for (uint32_t i = 0; i < m->file_count; i++)
        if (m->files[i].space == space && m->files[i].dir == dir)
            return &m->files[i];
    return NULL;
}
