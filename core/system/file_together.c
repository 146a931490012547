/* core/system/file_together.c - new files that belong together take their names together: see file.h. */
#include "core/system/cleanup.h"
#include "core/system/file.h"

strata_status st_new_file_commit_all(struct st_new_file *const files[], uint32_t count, bool take_back)
{
    strata_status st = STRATA_OK;
    uint32_t named = 0;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = st_new_file_sync(files[i]);
    if (st != STRATA_OK)
        return st;
    st_cleanup_hold();
    for (; named < count && st == STRATA_OK; named += st == STRATA_OK)
        st = st_new_file_publish(files[named]);
    for (uint32_t i = 0; take_back && st != STRATA_OK && i < named; i++)
        st_new_file_take_back(files[i]);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = st_new_file_commit(files[i]);
    st_cleanup_release();
    return st;
}
