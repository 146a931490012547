/* mpi_find.c - opens strata_mpi.so: the file that STRATA_MPI names, or the one beside the program or the library, or where an
 * installation puts it. */
#include "core/base/error.h"
#include "offload/comm/comm_mpi_internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME    "strata_mpi.so"
#define REMEDY       "build strata where CMake finds MPI (Debian: libopenmpi-dev), set STRATA_MPI to the file, or use tcp"
#define TRIED_BYTES  1024u
#define FOLDER_BYTES (PATH_MAX + 64)

static strata_status try_file(const struct st_mpi_plugin **out, const char *file)
{
    const struct st_mpi_plugin *plugin;
    void *handle;

    /* Its MPI opens files of its own, which look for MPI's functions among those that all can see.  Never closed: MPI does not
     * survive that. */
    handle = st_fault("mpi.plugin", 0) == 0 ? dlopen(file, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) : NULL;
    if (handle == NULL) {
        const char *why = dlerror();

        return st_error(STRATA_E_NOSYS, "mpi: %s cannot be opened: %s: install the MPI that it was built with, or build it again",
                        file, why != NULL ? why : "a test refuses it");
    }
    plugin = dlsym(handle, ST_MPI_SYMBOL);
    if (plugin == NULL)
        return st_error(STRATA_E_NOSYS, "mpi: %s has no %s: it is no part of strata", file, ST_MPI_SYMBOL);
    if (plugin->abi != ST_MPI_ABI || plugin->bytes != sizeof(*plugin))
        return st_error(STRATA_E_NOSYS,
                        "mpi: %s has interface %u (%u bytes), this program interface %u (%zu bytes): install both from one build",
                        file, plugin->abi, plugin->bytes, ST_MPI_ABI, sizeof(*plugin));
    *out = plugin;
    return STRATA_OK;
}

/* The folder of the program, or of the library that this is a part of. */
static bool folder_of_program(char out[FOLDER_BYTES])
{
    const ssize_t bytes = st_fault("mpi.place", 0) == 0 ? readlink("/proc/self/exe", out, PATH_MAX) : -1;

    out[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

static bool folder_of_library(char out[FOLDER_BYTES])
{
    Dl_info info;

    if (st_fault("mpi.place", 0) != 0 || dladdr((const void *)&try_file, &info) == 0 || info.dli_fname[0] != '/')
        return false;
    snprintf(out, FOLDER_BYTES, "%s", info.dli_fname);
    return true;
}

/* True: the file is there, whether it can be used or not. */
static bool try_place(const struct st_mpi_plugin **out, char folder[FOLDER_BYTES], const char *below, char tried[TRIED_BYTES],
                      strata_status *st)
{
    char file[2 * PATH_MAX];
    const size_t used = strlen(tried);
    char *slash = strrchr(folder, '/');

    if (slash != NULL)
        *slash = '\0';
    snprintf(file, sizeof(file), "%s/%s" FILE_NAME, folder, below);
    if (slash != NULL)
        *slash = '/';
    if (st_fault("mpi.place", 0) != 0 || access(file, F_OK) != 0) {
        snprintf(tried + used, TRIED_BYTES - used, "%s%s", used > 0 ? ", " : "", file);
        return false;
    }
    *st = try_file(out, file);
    return true;
}

strata_status st_mpi_find(const struct st_mpi_plugin **out)
{
    static const char *const below_program[] = {"", STRATA_MPI_FROM_PROGRAM "/"}, *const below_library[] = {"", "strata/"};
    const char *asked = getenv("STRATA_MPI");
    char folder[FOLDER_BYTES], tried[TRIED_BYTES] = "";
    strata_status st = STRATA_OK;

    if (asked != NULL && asked[0] != '\0') {
        st = try_file(out, asked);
        return st == STRATA_OK ? st : st_error_prefix(st, "STRATA_MPI");
    }
    for (uint32_t i = 0; folder_of_program(folder) && i < 2; i++)
        if (try_place(out, folder, below_program[i], tried, &st))
            return st;
    for (uint32_t i = 0; folder_of_library(folder) && i < 2; i++)
        if (try_place(out, folder, below_library[i], tried, &st))
            return st;
    return st_error(STRATA_E_NOSYS, "mpi: there is no " FILE_NAME " (tried: %s): " REMEDY, tried);
}
