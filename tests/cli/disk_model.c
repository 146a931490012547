/* tests/cli/disk_model.c - see disk_model.h. */
#include "tests/cli/disk_model.h"
#include "tests/cli/file_record.h"
#include "tests/common/whole_file.h"

#include <assert.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES_MAX    1024u
#define ENTRIES_MAX  64u
#define PATH_BYTES   512u
#define SECTOR_BYTES 512u
#define HOLE_LEAST   (1u << 20)

struct entry {
    char name[80];
    uint32_t node;
};

/* A file or a directory; number 0 is the root. */
struct node {
    uint64_t number; /* of its inode, which a later node may have, too */
    bool is_dir;
    uint32_t entry_count;
    struct entry entries[ENTRIES_MAX]; /* while names are replayed */
    char *first;                       /* what it held before the run */
    size_t first_bytes;
    char path[PATH_BYTES]; /* where it was put, "" as yet */
};

struct call {
    struct file_record r;
    const unsigned char *data;
    uint32_t node, dir, to_dir, other; /* other: what the second name of an exchange led to */
    bool known;                        /* within the root */
};

struct disk {
    char root[PATH_BYTES];
    struct node *nodes; /* [NODES_MAX] */
    uint32_t node_count, first_count;
    struct call *calls;
    uint32_t call_count;
    char *text; /* of the records */
    struct entry (*firsts)[ENTRIES_MAX];
    uint32_t *first_counts;
};

uint64_t disk_random(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* --- names --- */

static uint32_t find_number(const struct disk *d, uint64_t number)
{
    for (uint32_t i = d->node_count; i > 0; i--)
        if (d->nodes[i - 1].number == number)
            return i - 1;
    return NODES_MAX;
}

static struct entry *find_entry(struct node *dir, const char *name)
{
    for (uint32_t i = 0; i < dir->entry_count; i++)
        if (strcmp(dir->entries[i].name, name) == 0)
            return &dir->entries[i];
    return NULL;
}

static void set_entry(struct node *dir, const char *name, uint32_t node)
{
    struct entry *e = find_entry(dir, name);

    if (e == NULL) {
        assert(dir->entry_count < ENTRIES_MAX);
        e = &dir->entries[dir->entry_count++];
        memcpy(e->name, name, strlen(name) + 1);
    }
    e->node = node;
}

static void drop_entry(struct node *dir, const char *name)
{
    struct entry *e = find_entry(dir, name);

    if (e != NULL)
        *e = dir->entries[--dir->entry_count];
}

static uint32_t add_node(struct disk *d, uint64_t number, bool is_dir)
{
    assert(d->node_count < NODES_MAX);
    d->nodes[d->node_count] = (struct node){.number = number, .is_dir = is_dir};
    return d->node_count++;
}

static void apply(struct disk *d, const struct call *c)
{
    struct node *dir = &d->nodes[c->dir];

    switch ((enum file_record_op)c->r.op) {
    case FILE_MAKE:
    case FILE_LINK:
        set_entry(dir, c->r.name, c->node);
        break;
    case FILE_RENAME:
        drop_entry(dir, c->r.name);
        set_entry(&d->nodes[c->to_dir], c->r.to_name, c->node);
        break;
    case FILE_EXCHANGE:
        set_entry(dir, c->r.name, c->other);
        set_entry(&d->nodes[c->to_dir], c->r.to_name, c->node);
        break;
    case FILE_UNLINK:
        drop_entry(dir, c->r.name);
        break;
    case FILE_WRITE:
    case FILE_RESERVE:
    case FILE_CUT:
    case FILE_SYNC:
        break;
    }
}

static bool is_name(const struct call *c)
{
    return c->r.op <= FILE_UNLINK;
}

/* The names before the run. */
static void reset(struct disk *d)
{
    for (uint32_t i = 0; i < d->node_count; i++) {
        d->nodes[i].entry_count = i < d->first_count ? d->first_counts[i] : 0;
        if (d->nodes[i].entry_count > 0)
            memcpy(d->nodes[i].entries, d->firsts[i], sizeof(d->firsts[i]));
        d->nodes[i].path[0] = '\0';
    }
}

/* --- before the run --- */

static void look_into(struct disk *d, uint32_t at, const char *path)
{
    DIR *dir = opendir(path);

    assert(dir != NULL);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        char child[PATH_BYTES];
        struct stat info;
        uint32_t node;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        assert(snprintf(child, sizeof(child), "%s/%s", path, e->d_name) < (int)sizeof(child) && lstat(child, &info) == 0);
        node = find_number(d, info.st_ino);
        if (node == NODES_MAX) {
            node = add_node(d, info.st_ino, S_ISDIR(info.st_mode));
            if (S_ISDIR(info.st_mode))
                look_into(d, node, child);
            else
                d->nodes[node].first = read_file(child, &d->nodes[node].first_bytes);
        }
        set_entry(&d->nodes[at], e->d_name, node);
    }
    closedir(dir);
}

struct disk *disk_open(const char *root)
{
    struct disk *d = calloc(1, sizeof(*d));
    struct stat info;

    assert(d != NULL && stat(root, &info) == 0);
    d->nodes = calloc(NODES_MAX, sizeof(*d->nodes));
    assert(d->nodes != NULL);
    look_into(d, add_node(d, info.st_ino, true), root);
    d->first_count = d->node_count;
    d->firsts = calloc(d->first_count, sizeof(*d->firsts));
    d->first_counts = calloc(d->first_count, sizeof(*d->first_counts));
    assert(d->firsts != NULL && d->first_counts != NULL);
    for (uint32_t i = 0; i < d->first_count; i++) {
        memcpy(d->firsts[i], d->nodes[i].entries, sizeof(d->firsts[i]));
        d->first_counts[i] = d->nodes[i].entry_count;
    }
    return d;
}

void disk_close(struct disk *d)
{
    for (uint32_t i = 0; i < d->first_count; i++)
        free(d->nodes[i].first);
    free(d->firsts);
    free(d->first_counts);
    free(d->nodes);
    free(d->calls);
    free(d->text);
    free(d);
}

/* --- the run --- */

/* Numbers become nodes, as they were then. */
static void resolve(struct disk *d, struct call *c)
{
    struct entry *e, *other = NULL;

    if (!is_name(c)) {
        c->node = find_number(d, c->r.node);
        c->known = c->node != NODES_MAX;
        return;
    }
    c->dir = find_number(d, c->r.dir);
    c->to_dir = c->r.op == FILE_RENAME || c->r.op == FILE_EXCHANGE ? find_number(d, c->r.to_dir) : c->dir;
    c->known = c->dir != NODES_MAX && c->to_dir != NODES_MAX;
    if (!c->known)
        return;
    e = find_entry(&d->nodes[c->dir], c->r.name);
    if (c->r.op == FILE_MAKE)
        c->node = add_node(d, c->r.node, c->r.bytes != 0);
    else if (c->r.op == FILE_LINK)
        c->node = find_number(d, c->r.node);
    else
        c->node = e != NULL ? e->node : NODES_MAX;
    if (c->r.op == FILE_EXCHANGE)
        other = find_entry(&d->nodes[c->to_dir], c->r.to_name);
    c->other = other != NULL ? other->node : NODES_MAX;
    assert(c->node != NODES_MAX && (c->r.op != FILE_EXCHANGE || other != NULL));
    apply(d, c);
}

void disk_take_records(struct disk *d, const char *path)
{
    size_t bytes, at = 0;
    uint32_t room = 0;

    d->text = read_file(path, &bytes);
    reset(d);
    while (at < bytes) {
        struct call c = {.known = false};

        if (d->call_count == room) {
            room = room * 2 + 1024;
            d->calls = realloc(d->calls, room * sizeof(*d->calls));
            assert(d->calls != NULL);
        }
        assert(bytes - at >= sizeof(c.r));
        memcpy(&c.r, d->text + at, sizeof(c.r));
        at += sizeof(c.r);
        c.data = (const unsigned char *)d->text + at;
        at += c.r.op == FILE_WRITE ? c.r.bytes : 0;
        resolve(d, &c);
        if (c.known)
            d->calls[d->call_count++] = c;
    }
    assert(at == bytes);
}

uint32_t disk_record_count(const struct disk *d)
{
    return d->call_count;
}

static bool is_rename(const struct call *c)
{
    return c->r.op == FILE_RENAME || c->r.op == FILE_EXCHANGE;
}

uint32_t disk_choose(const struct disk *d, uint64_t *random)
{
    const uint64_t kind = disk_random(random) % 3;
    uint32_t at;

    do
        at = 1 + (uint32_t)(disk_random(random) % d->call_count);
    while ((kind == 1 && d->calls[at - 1].r.op == FILE_WRITE) || (kind == 2 && !is_rename(&d->calls[at - 1])));
    return at;
}

void disk_renamed(const struct disk *d, uint32_t at, const char *name, uint32_t count, char texts[][32])
{
    uint32_t found = 0;

    memset(texts, 0, count * sizeof(texts[0]));
    for (uint32_t i = at; i > 0 && found < count; i--) {
        const struct call *c = &d->calls[i - 1], *w = c;

        if (c->r.op != FILE_RENAME || strcmp(c->r.to_name, name) != 0)
            continue;
        while (w->r.op != FILE_WRITE || w->node != c->node) {
            assert(w > d->calls);
            w--;
        }
        assert(w->r.offset == 0 && w->r.bytes < 32);
        memcpy(texts[found++], w->data, w->r.bytes);
    }
}

/* --- the power cut --- */

/* Which calls' effects are there: 1, none of it: 0, and of a write some sectors: 2. */
static void choose_kept(const struct disk *d, uint32_t at, enum disk_loss loss, uint64_t random, unsigned char *kept)
{
    unsigned char *synced = calloc(d->node_count, 1);
    uint32_t last = 0, names;

    assert(synced != NULL);
    for (uint32_t i = at; i > 0; i--) {
        const struct call *c = &d->calls[i - 1];

        if (c->r.op == FILE_SYNC)
            synced[c->node] = 1;
        kept[i - 1] = synced[is_name(c) ? c->to_dir : c->node];
        if (is_name(c) && kept[i - 1] && last == 0)
            last = i;
    }
    names =
        last + (uint32_t)(disk_random(&random) % (at - last + 1)); /* a journal has all names before the last that is synced */
    for (uint32_t i = 0; i < at; i++) {
        const uint64_t draw = disk_random(&random);

        if (kept[i] || loss == DISK_LOSES_ALL)
            continue;
        if (is_name(&d->calls[i]))
            kept[i] = loss == DISK_LOSES_NOTHING || (loss == DISK_LOSES_DATA ? i < names : draw % 2 == 0);
        else
            kept[i] = loss == DISK_LOSES_NOTHING ? 1 : (unsigned char)(draw % 3);
    }
    free(synced);
}

struct content {
    unsigned char *data;
    uint64_t bytes;
};

static void grow(struct content *to, uint64_t bytes)
{
    if (bytes <= to->bytes)
        return;
    to->data = realloc(to->data, bytes);
    assert(to->data != NULL);
    memset(to->data + to->bytes, 0, bytes - to->bytes);
    to->bytes = bytes;
}

static void write_some(struct content *to, const struct call *c, uint64_t random)
{
    for (uint64_t at = 0; at < c->r.bytes; at += SECTOR_BYTES) {
        const uint64_t part = c->r.bytes - at < SECTOR_BYTES ? c->r.bytes - at : SECTOR_BYTES;

        if (disk_random(&random) % 2 != 0)
            continue;
        grow(to, c->r.offset + at + part);
        memcpy(to->data + c->r.offset + at, c->data + at, part);
    }
}

static void fill(struct content *to, const struct disk *d, uint32_t node, uint32_t at, const unsigned char *kept, uint64_t seed)
{
    grow(to, d->nodes[node].first_bytes);
    if (to->bytes > 0)
        memcpy(to->data, d->nodes[node].first, to->bytes);
    for (uint32_t i = 0; i < at; i++) {
        const struct call *c = &d->calls[i];

        if (is_name(c) || c->node != node || !kept[i])
            continue;
        if (c->r.op == FILE_CUT && c->r.bytes < to->bytes)
            to->bytes = c->r.bytes;
        if (c->r.op == FILE_WRITE && kept[i] == 2) {
            write_some(to, c, seed + i);
            continue;
        }
        grow(to, c->r.op == FILE_WRITE ? c->r.offset + c->r.bytes : c->r.op == FILE_SYNC ? 0 : c->r.bytes);
        if (c->r.op == FILE_WRITE)
            memcpy(to->data + c->r.offset, c->data, c->r.bytes);
    }
}

/* Of large files that no checkpoint has, nobody reads what they hold. */
static void put_file(const struct disk *d, uint32_t node, const char *path, uint32_t at, const unsigned char *kept, uint64_t seed)
{
    struct content c = {NULL, 0};

    fill(&c, d, node, at, kept, seed);
    if (c.bytes < HOLE_LEAST || strstr(path, "/step-") != NULL) {
        write_file(path, c.data != NULL ? (char *)c.data : "", c.bytes);
    } else {
        write_file(path, "", 0);
        assert(truncate(path, (off_t)c.bytes) == 0);
    }
    free(c.data);
}

static void put_tree(struct disk *d, uint32_t node, const char *path, uint32_t at, const unsigned char *kept, uint64_t seed)
{
    struct node *n = &d->nodes[node];

    assert(mkdir(path, 0700) == 0);
    for (uint32_t i = 0; i < n->entry_count; i++) {
        struct node *to = &d->nodes[n->entries[i].node];
        char child[PATH_BYTES];

        assert(snprintf(child, sizeof(child), "%s/%s", path, n->entries[i].name) < (int)sizeof(child));
        if (to->is_dir) {
            put_tree(d, n->entries[i].node, child, at, kept, seed);
        } else if (to->path[0] == '\0' || (strstr(child, "/step-") != NULL) != (strstr(to->path, "/step-") != NULL)) {
            put_file(d, n->entries[i].node, child, at, kept, seed);
            memcpy(to->path, child, sizeof(child));
        } else {
            assert(link(to->path, child) == 0);
        }
    }
}

void disk_cut(struct disk *d, uint32_t at, enum disk_loss loss, uint64_t seed, const char *to)
{
    unsigned char *kept = calloc(d->call_count + 1, 1);

    assert(kept != NULL && at <= d->call_count);
    choose_kept(d, at, loss, seed, kept);
    reset(d);
    for (uint32_t i = 0; i < at; i++)
        if (is_name(&d->calls[i]) && kept[i])
            apply(d, &d->calls[i]);
    put_tree(d, 0, to, at, kept, seed);
    free(kept);
}
