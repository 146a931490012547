/* fuzz_hf_index.c - any bytes as model.safetensors.index.json: no crash; what is accepted finds every tensor in a shard whose
 * name stays inside the directory. */
#include "model/hf/hf_index_internal.h"
#include "tests/fuzz/fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_index(const struct st_hf_index *index)
{
    check(index->count > 0 && index->file_count > 0 && index->file_count <= ST_HF_SHARDS_MAX);
    for (uint32_t i = 0; i < index->file_count; i++)
        check(index->files[i][0] != '\0' && strchr(index->files[i], '/') == NULL && strcmp(index->files[i], "..") != 0);
    for (uint32_t i = 0; i < index->count; i++) {
        check(i == 0 || strcmp(index->entries[i - 1].name, index->entries[i].name) < 0);
        check(st_hf_index_find(index, index->entries[i].name) == &index->entries[i]);
        check(index->entries[i].file < index->file_count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("index", MFD_CLOEXEC);
    struct st_hf_index index = {0};
    char path[64];
    strata_status st;

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    st = st_hf_index_read(&index, path);
    check(st == STRATA_OK || st == STRATA_E_INPUT);
    if (st == STRATA_OK) {
        check_index(&index);
        st_hf_index_fini(&index);
    }
    close(fd);
    return 0;
}
