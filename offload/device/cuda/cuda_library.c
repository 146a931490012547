/* cuda_library.c - finds NVIDIA's shared libraries.  See offload/device/cuda/cuda_library.h. */
#include "offload/device/cuda/cuda_library.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIES_MAX      16u /* libraries opened in one search */
#define LINKS_MAX      8u  /* followed from the python on PATH */
#define REFUSALS_BYTES 640u
#define PACKAGES       "/lib*/python3*/*-packages/nvidia/*/lib"

/* Folders, as patterns: the value of `variable`, if there is one, followed by `folder`.  PATH stands for the prefixes of the
 * python that it leads to. */
struct place {
    const char *variable, *folder;
};

static const struct place places[] = {
    {"CUDA_HOME", "/lib64"},
    {"CUDA_HOME", "/targets/*/lib"},
    {"CUDA_PATH", "/lib64"},
    {"CUDA_PATH", "/targets/*/lib"},
    {NULL, "/usr/local/cuda*/lib64"},
    {NULL, "/usr/local/cuda*/targets/*/lib"},
    {NULL, "/opt/cuda*/lib64"},
    {NULL, "/opt/cuda*/targets/*/lib"},
    {"CONDA_PREFIX", "/lib"},
    {"CONDA_PREFIX", "/targets/*/lib"},
    {"VIRTUAL_ENV", PACKAGES},
    {"CONDA_PREFIX", PACKAGES},
    {"PATH", PACKAGES},
    {"HOME", "/.local" PACKAGES},
    {NULL, "/usr/local" PACKAGES},
    {NULL, "/usr" PACKAGES},
};

struct search {
    const struct st_library_kind *kind;
    void *ctx;
    uint32_t version;
    struct {
        dev_t dev;
        ino_t ino;
    } seen[TRIES_MAX]; /* files that were opened */
    uint32_t tried;
    char refusals[REFUSALS_BYTES];
    strata_status st; /* once it is over */
};

/* --- one library --- */

static void add_refusal(struct search *s, const char *text)
{
    const size_t used = strlen(s->refusals);

    snprintf(s->refusals + used, sizeof(s->refusals) - used, "%s%s", used > 0 ? "; " : "", text);
}

static bool was_seen(const struct search *s, const struct stat *file)
{
    for (uint32_t i = 0; i < s->tried; i++)
        if (s->seen[i].dev == file->st_dev && s->seen[i].ino == file->st_ino)
            return true;
    return false;
}

/* The path of an opened library; `name` if the system does not tell. */
static const char *path_of(void *handle, const char *name)
{
    struct link_map *map = NULL;

    return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0' ? map->l_name : name;
}

/* True: the search is over. */
static bool try_library(struct search *s, const char *name)
{
    struct stat file = {0};
    void *handle;

    if (s->tried == TRIES_MAX || (name[0] == '/' && (stat(name, &file) != 0 || was_seen(s, &file))))
        return false;
    handle = st_fault(s->kind->site, 0) == 0 ? dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    if (handle == NULL) {
        const char *why = dlerror();

        add_refusal(s, why != NULL ? why : name);
        return false;
    }
    if (name[0] == '/' || stat(path_of(handle, name), &file) == 0) {
        s->seen[s->tried].dev = file.st_dev;
        s->seen[s->tried].ino = file.st_ino;
        s->tried++;
    }
    s->st = s->kind->accept(s->ctx, handle, path_of(handle, name));
    if (s->st == STRATA_OK)
        return true;
    (void)dlclose(handle);
    add_refusal(s, strata_last_error());
    return s->st != STRATA_E_NOSYS;
}

/* --- places --- */

/* The library's name below every folder that `prefix`, read literally, and the pattern `folder` name. */
static bool try_folders(struct search *s, const char *prefix, const char *folder)
{
    char pattern[2 * PATH_MAX + 256];
    glob_t found;
    size_t used = 0;
    bool over = false;

    for (const char *c = prefix; *c != '\0' && used < 2 * PATH_MAX; c++) {
        if (strchr("*?[\\", *c) != NULL)
            pattern[used++] = '\\';
        pattern[used++] = *c;
    }
    snprintf(pattern + used, sizeof(pattern) - used, "%s/%s.%u", folder, s->kind->name, s->version);
    if (st_fault("cuda.search", 0) != 0 || glob(pattern, 0, NULL, &found) != 0)
        return false;
    for (size_t i = 0; i < found.gl_pathc && !over; i++)
        over = try_library(s, found.gl_pathv[i]);
    globfree(&found);
    return over;
}

/* `path` without its last part. */
static void cut_part(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash != NULL)
        *slash = '\0';
}

/* Replaces a link's path by what it names.  False: it is no link. */
static bool follow(char path[PATH_MAX])
{
    char target[PATH_MAX], folder[PATH_MAX];
    const ssize_t bytes = st_fault("cuda.search", 0) == 0 ? readlink(path, target, sizeof(target) - 1) : -1;

    if (bytes <= 0)
        return false;
    target[bytes] = '\0';
    snprintf(folder, sizeof(folder), "%s", target[0] == '/' ? "" : path);
    cut_part(folder);
    return snprintf(path, PATH_MAX, "%s%s%s", folder, folder[0] != '\0' ? "/" : "", target) < PATH_MAX;
}

/* The prefix of the file `python`, and of every file that it leads to: an environment's python is itself a link. */
static bool try_python(struct search *s, const char *python, const char *folder)
{
    char path[PATH_MAX], prefix[PATH_MAX];

    snprintf(path, sizeof(path), "%s", python);
    for (uint32_t i = 0; i < LINKS_MAX; i++) {
        snprintf(prefix, sizeof(prefix), "%s", path);
        cut_part(prefix); /* python3 */
        cut_part(prefix); /* bin */
        if (try_folders(s, prefix, folder))
            return true;
        if (!follow(path))
            return false;
    }
    return false;
}

/* The python that a shell would run. */
static bool try_python_on(struct search *s, const char *path, const char *folder)
{
    for (const char *at = path; at != NULL; at = strchr(at, ':') != NULL ? strchr(at, ':') + 1 : NULL) {
        char python[PATH_MAX];
        const int bytes = (int)strcspn(at, ":");

        if (at[0] != '/' || bytes > PATH_MAX - 16)
            continue;
        snprintf(python, sizeof(python), "%.*s/python3", bytes, at);
        if (access(python, X_OK) == 0)
            return try_python(s, python, folder);
    }
    return false;
}

static bool try_place(struct search *s, const struct place *place)
{
    const char *value = place->variable != NULL ? getenv(place->variable) : "";

    if (value == NULL)
        return false;
    if (place->variable != NULL && strcmp(place->variable, "PATH") == 0)
        return try_python_on(s, value, place->folder);
    return (place->variable == NULL || value[0] == '/') && try_folders(s, value, place->folder);
}

static bool try_version(struct search *s)
{
    char name[64];

    snprintf(name, sizeof(name), "%s.%u", s->kind->name, s->version);
    if (try_library(s, name))
        return true;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (try_place(s, &places[i]))
            return true;
    return false;
}

static strata_status try_asked(struct search *s, const char *file)
{
    s->st = STRATA_E_NOSYS;
    (void)try_library(s, file);
    if (s->st == STRATA_OK)
        return STRATA_OK;
    return st_error(s->st, "cuda: %s names %s, which cannot be used: %s", s->kind->asked, file,
                    s->refusals[0] != '\0' ? s->refusals : "there is no such file");
}

static strata_status find(const struct st_library_kind *kind, void *ctx)
{
    struct search s = {.kind = kind, .ctx = ctx};
    const char *asked = kind->asked != NULL ? getenv(kind->asked) : NULL;

    if (asked != NULL && asked[0] != '\0')
        return try_asked(&s, asked);
    for (uint32_t i = 0; i < ST_LIBRARY_VERSIONS && kind->versions[i] != 0; i++) {
        s.version = kind->versions[i];
        if (try_version(&s))
            return s.st;
    }
    return st_error(STRATA_E_NOSYS, "%s (tried: %s)", kind->missing, s.refusals);
}

strata_status st_library_find(const struct st_library_kind *kind, void *ctx)
{
    static pthread_mutex_t lock =
        PTHREAD_MUTEX_INITIALIZER; /* one search at a time: each looks into the loader's list of files */
    strata_status st;

    pthread_mutex_lock(&lock);
    st = find(kind, ctx);
    pthread_mutex_unlock(&lock);
    return st;
}
