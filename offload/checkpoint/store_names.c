/* store_names.c - names of checkpoints, and those that a directory has: see store.h. */
#include "offload/checkpoint/store.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_PREFIX "step-"
#define STEP_DIGITS 8

void st_store_name(char name[ST_STORE_NAME_BYTES], uint64_t step)
{
    snprintf(name, ST_STORE_NAME_BYTES, STEP_PREFIX "%0*" PRIu64, STEP_DIGITS, step);
}

bool st_store_step(const char *name, uint64_t *step)
{
    char again[ST_STORE_NAME_BYTES];

    if (sscanf(name, STEP_PREFIX "%16" SCNu64, step) != 1 || *step > ST_STORE_STEP_MOST)
        return false;
    st_store_name(again, *step);
    return strcmp(again, name) == 0;
}

static int compare_steps(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static strata_status add_step(struct st_store_list *list, uint32_t *room, uint64_t step)
{
    if (list->count == *room) {
        const uint32_t more = *room < 16 ? 16 : *room * 2;
        uint64_t *steps = st_fault("store.alloc", 0) < 0 ? NULL : realloc(list->steps, more * sizeof(*steps));

        if (steps == NULL)
            return st_nomem(more * sizeof(*steps));
        list->steps = steps;
        *room = more;
    }
    list->steps[list->count++] = step;
    return STRATA_OK;
}

strata_status st_store_list(struct st_store_list *out, const char *dir)
{
    DIR *stream = st_fault_refuses("store.opendir") ? NULL : opendir(dir);
    struct st_store_list list = {0};
    const struct dirent *entry;
    strata_status st = STRATA_OK;
    uint32_t room = 0;

    if (stream == NULL)
        return st_error_errno(errno, "%s", dir);
    while (st == STRATA_OK && (entry = st_dir_next(stream)) != NULL) {
        uint64_t step;

        if (st_store_step(entry->d_name, &step))
            st = add_step(&list, &room, step);
    }
    if (st == STRATA_OK && errno != 0)
        st = st_error_errno(errno, "reading %s", dir);
    closedir(stream);
    if (st != STRATA_OK) {
        free(list.steps);
        return st;
    }
    if (list.count > 0)
        qsort(list.steps, list.count, sizeof(*list.steps), compare_steps);
    *out = list;
    return STRATA_OK;
}

strata_status st_store_list_there(struct st_store_list *out, const char *dir)
{
    bool there = false;
    const strata_status st = st_file_find(&there, dir);

    *out = (struct st_store_list){0};
    return st == STRATA_OK && there ? st_store_list(out, dir) : st;
}

strata_status st_store_check_names(const char *dir, uint64_t step, bool overwrite)
{
    struct st_store_list list;
    char name[ST_STORE_NAME_BYTES];
    strata_status st = st_store_list_there(&list, dir);

    if (st == STRATA_OK && !overwrite && list.count > 0 && list.steps[list.count - 1] > step) {
        st_store_name(name, list.steps[list.count - 1]);
        st = st_error_remedy(st_error(STRATA_E_INPUT, "%s has checkpoints of later steps already (%s)", dir, name), "strata.save",
                             "go on from there (train.resume auto), name another directory with strata.save, or replace them "
                             "(engine.overwrite)");
    }
    free(list.steps);
    return st;
}
