/* model/hf/hf_source.c - see hf_source_internal.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/json/json_edit.h"
#include "core/system/file.h"
#include "model/adapter/adapter.h"
#include "model/hf/hf_config_internal.h"
#include "model/hf/hf_fields_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/hf/hf_source_internal.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX   (64u << 20)
#define FILES_MAX        256u /* every copy stays open during the run */
#define CONFIG_BYTES_MAX (1u << 20)
#define PART_BYTES       (1u << 20)

/* What a tokenizer consists of: the files that it may be read from, and those beside them. */
static const char *const tokenizer_files[] = {"tokenizer.json",    "tokenizer.model",       "vocab.json",
                                              "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
                                              "added_tokens.json", "chat_template.jinja",   "chat_template.json"};
#define TEMPLATE_NAME "chat_template.jinja"
enum { TOKENIZER_FILES = sizeof(tokenizer_files) / sizeof(tokenizer_files[0]), TOKENIZER_MAINS = 3 };

struct side_file {
    char name[NAME_MAX + 1]; /* of the copy */
    char path[ST_PATH_MAX];
    int fd;
    struct st_file_identity identity;
    bool replaces; /* a file of another tokenizer */
};

struct st_hf_source {
    char dir[ST_PATH_MAX];
    const struct st_hf_instead *instead; /* never NULL */
    char *config;                        /* text of config.json, with the run's dtype */
    char *generation_text;               /* of generation_config.json, with an end token more; NULL: it is copied */
    struct side_file *files;             /* [count], by name */
    struct side_file generation;         /* generation_config.json; fd -1: none */
    uint32_t count;
    bool overwrite;
    const char *stale[TOKENIZER_FILES]; /* [stale_count] files of another tokenizer in the output directory, to be removed */
    uint32_t stale_count;
};

/* --- which files are copied --- */

/* Weights in any format belong to the old model and are not copied, nor are files that a run could not give their names
 * (core/system/file.h), nor the settings of an adapter, without which a model is a model; the two configs are written separately.
 */
static bool is_taken(const char *name)
{
    static const char *const endings[] = {".safetensors", ".bin", ".pt",     ".pth", ".ckpt", ".h5",   ".msgpack",    ".gguf",
                                          ".onnx",        ".ot",  ".tflite", ".npz", ".pkl",  ".nemo", ".index.json", ".tmp"};

    if (name[0] == '.' || strstr(name, ST_NEW_FILE_MARK) != NULL || strcmp(name, ST_HF_CONFIG_NAME) == 0 ||
        strcmp(name, ST_HF_GENERATION_NAME) == 0 || strcmp(name, ST_ADAPTER_CONFIG_NAME) == 0)
        return false;
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (st_path_ends(name, endings[i]))
            return false;
    return true;
}

/* Whether a name is a regular file that is small enough; a dangling link is an error. */
static strata_status is_small(const char *path, bool *small)
{
    struct stat info;
    const int64_t res = st_fault("hf.stat", st_result(stat(path, &info)));

    if (res < 0)
        return st_error(STRATA_E_INPUT, "%s: %s: it is in the model's directory and would be copied: repair or remove it", path,
                        strerror((int)-res));
    *small = S_ISREG(info.st_mode) && info.st_size <= (off_t)FILE_BYTES_MAX;
    if (S_ISDIR(info.st_mode) && st_path_ends(path, "/additional_chat_templates"))
        st_log(ST_LOG_NOTICE, "%s is a folder: not copied, so that the copy has only the usual chat template", path);
    if (S_ISREG(info.st_mode) && !*small)
        st_log(ST_LOG_NOTICE, "%s is larger than %u MiB: not copied", path, FILE_BYTES_MAX >> 20);
    return STRATA_OK;
}

static strata_status open_side(struct side_file *f, const char *path, const char *name)
{
    f->fd = -1;
    snprintf(f->name, sizeof(f->name), "%s", name);
    snprintf(f->path, sizeof(f->path), "%s", path);
    return st_file_open(&f->fd, &f->identity, path, STRATA_E_INPUT);
}

static strata_status add_file(struct st_hf_source *s, const char *path, const char *name)
{
    bool small = false;
    strata_status st = is_small(path, &small);

    if (st != STRATA_OK || !small)
        return st;
    if (s->count == FILES_MAX)
        return st_error(STRATA_E_INPUT, "%s: more than %u files beside the weights would be copied", s->dir, FILES_MAX);
    if ((st = open_side(&s->files[s->count], path, name)) == STRATA_OK)
        s->count++;
    return st;
}

static strata_status add_files(struct st_hf_source *s)
{
    DIR *entries = opendir(s->dir);
    const int64_t res = st_fault("hf.opendir", entries != NULL ? 0 : -errno);
    strata_status st = STRATA_OK;
    char path[ST_PATH_MAX];
    struct dirent *entry;

    if (res < 0)
        st = st_error_errno((int)-res, "%s", s->dir);
    while (st == STRATA_OK && (entry = st_dir_next(entries)) != NULL)
        if (is_taken(entry->d_name) && (st = st_path_join(path, s->dir, entry->d_name)) == STRATA_OK)
            st = add_file(s, path, entry->d_name);
    if (st == STRATA_OK && errno != 0)
        st = st_error_errno(errno, "%s: its entries cannot be read", s->dir);
    if (entries != NULL)
        closedir(entries);
    return st;
}

/* --- another tokenizer --- */

static bool is_tokenizers(const char *name)
{
    for (size_t i = 0; i < TOKENIZER_FILES; i++)
        if (strcmp(name, tokenizer_files[i]) == 0)
            return true;
    return false;
}

/* The name that a tokenizer's file has in a directory (st_tokenizer_open). */
static const char *main_name(const char *path)
{
    return tokenizer_files[st_path_ends(path, ".model") ? 1 : st_path_ends(path, "vocab.json") ? 2 : 0];
}

static strata_status add_from(struct st_hf_source *s, const char *dir, size_t first)
{
    char path[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    for (size_t i = first; i < TOKENIZER_FILES && st == STRATA_OK; i++) {
        bool there = false;

        if ((st = st_path_join(path, dir, tokenizer_files[i])) == STRATA_OK && (st = st_file_find(&there, path)) == STRATA_OK &&
            there)
            st = add_file(s, path, tokenizer_files[i]);
    }
    return st;
}

static bool is_template(const char *name)
{
    return strcmp(name, TEMPLATE_NAME) == 0 || strcmp(name, "chat_template.json") == 0;
}

static void drop_files(struct st_hf_source *s, bool (*drops)(const char *name))
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->count; i++)
        if (drops(s->files[i].name))
            close(s->files[i].fd);
        else
            s->files[kept++] = s->files[i];
    s->count = kept;
}

/* Puts the files of the tokenizer at `path` in the place of the directory's own. */
static strata_status replace_tokenizer(struct st_hf_source *s, const char *path)
{
    char dir[ST_PATH_MAX];
    struct stat info;
    const int64_t res = st_fault("hf.stat", st_result(stat(path, &info)));
    strata_status st;

    if (res < 0)
        return st_error_errno((int)-res, "%s", path);
    drop_files(s, is_tokenizers);
    if (S_ISDIR(info.st_mode))
        return add_from(s, path, 0);
    if ((st = st_path_dir(dir, path)) == STRATA_OK)
        st = add_file(s, path, main_name(path));
    return st == STRATA_OK ? add_from(s, dir, TOKENIZER_MAINS) : st;
}

/* --- files that exist already --- */

/* Compares two files of equal length. */
static strata_status same_bytes(const struct side_file *f, const char *from, int fd, const char *path, unsigned char *parts,
                                bool *same)
{
    strata_status st = STRATA_OK;

    *same = true;
    for (uint64_t at = 0; at < f->identity.bytes && *same && st == STRATA_OK; at += PART_BYTES) {
        const uint64_t bytes = f->identity.bytes - at < PART_BYTES ? f->identity.bytes - at : PART_BYTES;

        if ((st = st_file_read_at(f->fd, parts, bytes, at, from)) == STRATA_OK &&
            (st = st_file_read_at(fd, parts + PART_BYTES, bytes, at, path)) == STRATA_OK)
            *same = memcmp(parts, parts + PART_BYTES, bytes) == 0;
    }
    return st;
}

static strata_status compare(const struct side_file *f, const char *path, unsigned char *parts, bool *same)
{
    struct st_file_identity have;
    int fd;
    strata_status st = st_file_open(&fd, &have, path, STRATA_E_INPUT);

    if (st != STRATA_OK)
        return st;
    if (have.bytes == f->identity.bytes)
        st = same_bytes(f, f->path, fd, path, parts, same);
    close(fd);
    return st;
}

static strata_status refuse_tokenizer(const char *path)
{
    return st_error_remedy(
        st_error(STRATA_E_INPUT, "%s: is of another tokenizer than the model's, and would be read with it", path),
        "export.overwrite", "take it away, or export.overwrite replaces it");
}

/* A file that `to` has, too: it stays, unless it is another tokenizer's. */
static strata_status find_twin(struct side_file *f, const char *path, bool overwrite, unsigned char *parts)
{
    bool same = false;
    const strata_status st = compare(f, path, parts, &same);

    if (st != STRATA_OK || same)
        return st;
    if (!is_tokenizers(f->name))
        st_log(ST_LOG_NOTICE, "%s differs from %s and stays as it is", path, f->path);
    else if (!overwrite)
        return refuse_tokenizer(path);
    else
        f->replaces = true;
    return STRATA_OK;
}

/* Drops the files that `to` already has and that stay as they are. */
static strata_status leave_out(struct st_hf_source *s, const char *to, bool overwrite)
{
    unsigned char *parts = malloc(2 * (size_t)PART_BYTES);
    strata_status st = parts != NULL ? STRATA_OK : st_nomem(2 * (size_t)PART_BYTES);
    char path[ST_PATH_MAX];
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->count; i++) {
        struct side_file *f = &s->files[i];
        bool there = false;

        if (st == STRATA_OK && (st = st_path_join(path, to, f->name)) == STRATA_OK)
            st = st_file_find(&there, path);
        if (there)
            st = find_twin(f, path, overwrite, parts);
        if (there && !f->replaces)
            close(f->fd);
        else
            s->files[kept++] = *f;
    }
    s->count = kept;
    free(parts);
    return st;
}

static bool has_file(const struct st_hf_source *s, const char *name)
{
    if (s->instead->chat_template != NULL && strcmp(name, TEMPLATE_NAME) == 0)
        return true;
    for (uint32_t i = 0; i < s->count; i++)
        if (strcmp(s->files[i].name, name) == 0)
            return true;
    return false;
}

/* A tokenizer is all of its files: what `to` has of another one, under names that this one lacks, would be read in its place. */
static strata_status find_stale(struct st_hf_source *s, const char *to, bool overwrite)
{
    bool any = false;
    char path[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < TOKENIZER_FILES; i++)
        any |= has_file(s, tokenizer_files[i]);
    for (size_t i = 0; any && i < TOKENIZER_FILES && st == STRATA_OK; i++) {
        bool there = false;

        if (has_file(s, tokenizer_files[i]) || (st = st_path_join(path, to, tokenizer_files[i])) != STRATA_OK ||
            (st = st_file_find(&there, path)) != STRATA_OK || !there)
            continue;
        if (!overwrite)
            return refuse_tokenizer(path);
        s->stale[s->stale_count++] = tokenizer_files[i];
    }
    return st;
}

/* --- config.json --- */

/* The value of `key` without "torch."; "": the key names no dtype; NULL: there is no such key. */
static const char *dtype_of(const st_json *root, const char *key)
{
    const st_json *n = st_json_get(root, key);
    const char *text = n != NULL && st_json_type(n) == ST_JSON_STRING ? st_json_string(n) : "";

    if (n == NULL)
        return NULL;
    return strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
}

/* Replaces *text by the text with another value. */
static strata_status edit(char **text, const char *where, const char *key, const char *dtype)
{
    char value[16], *edited;
    strata_status st;

    snprintf(value, sizeof(value), "\"%s\"", dtype);
    if ((st = st_json_edit(&edited, *text, where, key, value)) != STRATA_OK)
        return st;
    free(*text);
    *text = edited;
    return STRATA_OK;
}

/* Sets both spellings of the key if they differ from `dtype`.  A file with neither means fp32. */
static strata_status with_dtype(char **text, const st_json *root, const char *where, strata_dtype dtype)
{
    static const char *const keys[] = {"torch_dtype", "dtype"};
    const char *name = st_hf_dtype_name(dtype);
    bool said = false;
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && st == STRATA_OK; i++) {
        const char *have = dtype_of(root, keys[i]);

        said |= have != NULL;
        if (have != NULL && strcmp(have, name) != 0)
            st = edit(text, where, keys[i], name);
    }
    return st == STRATA_OK && !said && dtype != STRATA_F32 ? edit(text, where, keys[0], name) : st;
}

/* Edits the text now rather than at the end, so that a file that cannot be edited is found before training. */
static strata_status read_config(struct st_hf_source *s, strata_dtype dtype)
{
    char path[ST_PATH_MAX];
    st_json *root = NULL;
    uint64_t bytes;
    strata_status st;

    if ((st = st_path_join(path, s->dir, ST_HF_CONFIG_NAME)) != STRATA_OK ||
        (st = st_file_read_text(&s->config, &bytes, path, CONFIG_BYTES_MAX)) != STRATA_OK)
        return st;
    if ((st = st_json_parse(&root, s->config, bytes, path)) == STRATA_OK && dtype != STRATA_DTYPE_INVALID)
        st = with_dtype(&s->config, root, path, dtype);
    st_json_free(root);
    return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
}

/* --- open and close --- */

static strata_status open_generation(struct st_hf_source *s)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st;

    if ((st = st_path_join(path, s->dir, ST_HF_GENERATION_NAME)) != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK ||
        !there)
        return st;
    return open_side(&s->generation, path, ST_HF_GENERATION_NAME);
}

/* Look in the file that names the end tokens of generated text. */
static strata_status add_end(struct st_hf_source *s)
{
    uint64_t bytes;
    strata_status st;

    if (!s->instead->ends)
        return STRATA_OK;
    if (s->generation.fd < 0)
        return st_hf_ends_add(&s->config, ST_HF_CONFIG_NAME, s->instead->end_token);
    st = st_file_read_text(&s->generation_text, &bytes, s->generation.path, CONFIG_BYTES_MAX);
    return st == STRATA_OK ? st_hf_ends_add(&s->generation_text, s->generation.path, s->instead->end_token) : st;
}

static strata_status open_directory(struct st_hf_source *s, const char *dir, strata_dtype dtype)
{
    strata_status st = st_path_copy(s->dir, dir);

    if (st != STRATA_OK)
        return st;
    if ((st = read_config(s, dtype)) != STRATA_OK || (st = open_generation(s)) != STRATA_OK || (st = add_end(s)) != STRATA_OK)
        return st;
    return add_files(s);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct side_file *)a)->name, ((const struct side_file *)b)->name);
}

strata_status st_hf_source_open(struct st_hf_source **out, const char *dir, const struct st_hf_instead *instead, const char *to,
                                bool overwrite, strata_dtype dtype)
{
    static const struct st_hf_instead nothing = {0};
    struct st_hf_source *s = calloc(1, sizeof(*s));
    strata_status st = STRATA_OK;

    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->generation.fd = -1;
    s->instead = instead != NULL ? instead : &nothing;
    s->overwrite = overwrite;
    s->files = calloc(FILES_MAX, sizeof(*s->files));
    if (s->files == NULL)
        st = st_nomem(0);
    if (st == STRATA_OK && dir != NULL && (st = open_directory(s, dir, dtype)) == STRATA_E_IO)
        st = st_error_prefix(st, "reading what is copied from the model"); /* of which outputs' errors say nothing else */
    if (st == STRATA_OK && s->instead->tokenizer != NULL)
        st = replace_tokenizer(s, s->instead->tokenizer);
    if (s->instead->chat_template != NULL)
        drop_files(s, is_template);
    if (st == STRATA_OK && s->count > 0) {
        qsort(s->files, s->count, sizeof(*s->files), by_name);
        if ((st = find_stale(s, to, overwrite)) == STRATA_OK)
            st = leave_out(s, to, overwrite);
    }
    if (st != STRATA_OK) {
        st_hf_source_close(s);
        return st;
    }
    *out = s;
    return STRATA_OK;
}

void st_hf_source_close(struct st_hf_source *s)
{
    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->count; i++)
        close(s->files[i].fd);
    if (s->generation.fd >= 0)
        close(s->generation.fd);
    free(s->config);
    free(s->generation_text);
    free(s->files);
    free(s);
}

/* --- copies --- */

static strata_status copy_bytes(struct st_new_file *file, const struct side_file *f, const char *from)
{
    unsigned char *part = malloc(PART_BYTES);
    strata_status st = part != NULL ? STRATA_OK : st_nomem(PART_BYTES);

    for (uint64_t at = 0; at < f->identity.bytes && st == STRATA_OK; at += PART_BYTES) {
        const uint64_t bytes = f->identity.bytes - at < PART_BYTES ? f->identity.bytes - at : PART_BYTES;

        if ((st = st_file_read_at(f->fd, part, bytes, at, from)) == STRATA_OK)
            st = st_new_file_write_at(file, part, bytes, at);
    }
    free(part);
    return st;
}

static strata_status copy(struct st_new_file *file, const struct side_file *f, const char *to, unsigned flags)
{
    char path[ST_PATH_MAX];
    strata_status st;

    if ((st = st_path_join(path, to, f->name)) != STRATA_OK ||
        (st = st_new_file_create_as(file, path, flags, f->identity.permissions)) != STRATA_OK)
        return st;
    st = copy_bytes(file, f, f->path);
    return st == STRATA_OK ? st_file_check_unchanged(f->fd, &f->identity, f->path) : st;
}

strata_status st_hf_source_put_configs(const struct st_hf_source *s, struct st_new_file *config, struct st_new_file *generation,
                                       const char *to, bool overwrite)
{
    const strata_status st = st_hf_output_put(config, to, ST_HF_CONFIG_NAME, s->config, strlen(s->config), overwrite);

    if (st != STRATA_OK || s->generation.fd < 0)
        return st;
    if (s->generation_text != NULL)
        return st_hf_output_put(generation, to, ST_HF_GENERATION_NAME, s->generation_text, strlen(s->generation_text), overwrite);
    return copy(generation, &s->generation, to, overwrite ? ST_NEW_FILE_OVERWRITE : 0);
}

struct st_hf_copies {
    struct st_new_file files[FILES_MAX + 1];
    uint32_t count;
    char dir[ST_PATH_MAX];
    const char *stale[TOKENIZER_FILES]; /* [stale_count] */
    uint32_t stale_count;
};

/* One that is there already and the same stays. */
static strata_status put_template(struct st_hf_copies *copies, const struct st_hf_source *s, const char *to)
{
    const char *text = s->instead->chat_template;
    char path[ST_PATH_MAX], *have = NULL;
    struct st_new_file *file;
    bool there = false, same;
    uint64_t bytes;
    strata_status st = st_path_join(path, to, TEMPLATE_NAME);

    if (st == STRATA_OK)
        st = st_file_find(&there, path);
    if (st == STRATA_OK && there)
        st = st_file_read_text(&have, &bytes, path, FILE_BYTES_MAX);
    same = have != NULL && strcmp(have, text) == 0;
    free(have);
    if (st != STRATA_OK || same)
        return st;
    if (there && !s->overwrite)
        return refuse_tokenizer(path);
    file = &copies->files[copies->count++];
    file->fd = -1;
    return st_hf_output_put(file, to, TEMPLATE_NAME, text, strlen(text), s->overwrite);
}

strata_status st_hf_source_copy_files(struct st_hf_copies **out, const struct st_hf_source *s, const char *to)
{
    struct st_hf_copies *copies = calloc(1, sizeof(*copies));
    strata_status st;

    if (copies == NULL)
        return st_nomem(sizeof(*copies));
    st = st_path_copy(copies->dir, to);
    memcpy(copies->stale, s->stale, sizeof(copies->stale));
    copies->stale_count = s->stale_count;
    for (uint32_t i = 0; i < s->count && st == STRATA_OK; i++) {
        struct st_new_file *file = &copies->files[copies->count++];

        file->fd = -1;
        st = copy(file, &s->files[i], to, s->files[i].replaces ? ST_NEW_FILE_OVERWRITE : 0);
    }
    if (st == STRATA_OK && s->instead->chat_template != NULL)
        st = put_template(copies, s, to);
    if (st != STRATA_OK) {
        st_hf_copies_abort(copies);
        return st;
    }
    *out = copies;
    return STRATA_OK;
}

strata_status st_hf_copies_commit(struct st_hf_copies *copies)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; copies != NULL && i < copies->count; i++) {
        const strata_status one = st_new_file_commit(&copies->files[i]);

        st = one != STRATA_OK ? one : st;
    }
    for (uint32_t i = 0; copies != NULL && i < copies->stale_count && st == STRATA_OK; i++)
        st = st_hf_output_remove(copies->dir, copies->stale[i]);
    st_hf_copies_abort(copies);
    return st;
}

void st_hf_copies_abort(struct st_hf_copies *copies)
{
    for (uint32_t i = 0; copies != NULL && i < copies->count; i++)
        st_new_file_abort(&copies->files[i]);
    free(copies);
}
