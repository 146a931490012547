/* offload/machine/rates_kept.c - see rates_kept.h.
 *
 * One thread calls.  A file is one struct, as this build has it in memory, with a checksum: what is damaged, or of another
 * version, is as good as not there. */
#include "offload/machine/rates_kept.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/topology.h"
#include "kernels/matmul/matmul.h"
#include "strata/strata.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_MARK      "rates-"
#define UNITS_BYTES    4096
#define ENTRIES_LOOKED 4096u /* of the directory, for old ones */

struct record {
    uint64_t key;
    struct st_rates rates;
    uint64_t checksum; /* of what stands before it */
};

/* --- what a measurement depends on --- */

static void add(uint64_t *key, const void *bytes, size_t count)
{
    const uint64_t both[2] = {*key, st_checksum64(bytes, count)};

    *key = st_checksum64(both, sizeof(both));
}

static void add_text(uint64_t *key, const char *text)
{
    add(key, text != NULL ? text : "", text != NULL ? strlen(text) + 1 : 0);
}

static void add_machine(uint64_t *key, const struct st_machine *machine, const struct st_machine_opts *opts)
{
    const uint32_t workers = st_machine_workers(opts->topology, opts->device, opts->threads);
    char units[UNITS_BYTES], library[ST_MATMUL_LIBRARY_BYTES];
    const uint64_t numbers[] = {workers,
                                st_topology_has_quota(opts->topology),
                                st_topology_memory_limit(opts->topology),
                                opts->device_memory,
                                opts->host_memory,
                                (uint64_t)opts->rule,
                                (uint64_t)opts->fetch,
                                (uint64_t)opts->moments};

    add_text(key, machine->name);
    add_text(key, opts->device);
    add_text(key, opts->isa);
    st_matmul_library(library);
    add_text(key, library);
    add_text(key, st_topology_cpu_name(opts->topology));
    add_text(key, st_topology_units_text(opts->topology, workers, UINT32_MAX, units, sizeof(units)));
    add(key, numbers, sizeof(numbers));
}

/* A directory by its name and by what is mounted there. */
static void add_drives(uint64_t *key, const struct st_nvme_opts *nvme)
{
    const uint64_t numbers[] = {nvme->block_bytes, nvme->queue_depth, nvme->fake_latency_us, nvme->fake_bytes_per_second};

    add_text(key, nvme->method);
    add(key, numbers, sizeof(numbers));
    for (uint32_t i = 0; i < nvme->dir_count; i++) {
        struct stat info = {0};
        uint64_t place[2] = {0};

        if (!st_fault_refuses("rates.place") && stat(nvme->dirs[i], &info) == 0) {
            place[0] = info.st_dev;
            place[1] = info.st_ino;
        }
        add_text(key, nvme->dirs[i]);
        add(key, place, sizeof(place));
    }
}

static void add_workload(uint64_t *key, const struct st_workload *w)
{
    const uint64_t numbers[] = {(uint64_t)w->dtype, w->vocab,    w->hidden,     w->seq,
                                w->micro_batch,     w->params,   w->page_count, w->workspace_bytes,
                                w->constants_bytes, w->generate, w->workers};

    add_text(key, w->name);
    add(key, numbers, sizeof(numbers));
    for (uint32_t l = 0; l < w->layer_count; l++) {
        const struct st_layer *layer = &w->layers[l];
        const uint64_t bytes[] = {layer->kind, layer->use_count, layer->boundary_bytes, layer->internal_bytes};
        const double flops[] = {layer->forward_flops, layer->backward_flops, layer->experts_forward_flops,
                                layer->experts_backward_flops};

        add(key, bytes, sizeof(bytes));
        add(key, flops, sizeof(flops));
    }
    for (uint32_t p = 0; p < w->page_count; p++) {
        const uint64_t page[] = {w->pages[p].elems, w->pages[p].bytes, w->pages[p].trained_elems};

        add(key, page, sizeof(page));
    }
}

strata_status st_rates_kept_name(struct st_rates_kept *kept, const char *dir, const struct st_machine *machine,
                                 const struct st_workload *workload, const struct st_machine_opts *opts, unsigned what)
{
    char name[sizeof(NAME_MARK) + 16];

    *kept = (struct st_rates_kept){.key = sizeof(struct record), .what = what};
    add_text(&kept->key, strata_version());
    add(&kept->key, &what, sizeof(what));
    add_machine(&kept->key, machine, opts);
    add_workload(&kept->key, workload);
    if ((what & ST_MEASURE_DISK) != 0)
        add_drives(&kept->key, &opts->nvme);
    snprintf(name, sizeof(name), NAME_MARK "%016" PRIx64, kept->key);
    return st_path_join(kept->path, dir, name);
}

/* --- reading --- */

static bool is_of_this_hour(const struct stat *info, uint64_t *age)
{
    const time_t now = time(NULL);

    if (info->st_mtime > now || now - info->st_mtime >= ST_RATES_KEPT_SECONDS)
        return false;
    *age = (uint64_t)(now - info->st_mtime);
    return true;
}

bool st_rates_kept_read(const struct st_rates_kept *kept, struct st_rates *rates, uint64_t *age)
{
    struct st_file_identity identity;
    struct record record;
    struct stat info;
    bool good;
    int fd;

    if (st_file_open(&fd, &identity, kept->path, STRATA_E_INPUT) != STRATA_OK) {
        st_error_clear();
        return false;
    }
    good = !st_fault_refuses("rates.stat") && fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
           (info.st_mode & (S_IWGRP | S_IWOTH)) == 0 && info.st_size == sizeof(record) && is_of_this_hour(&info, age) &&
           st_file_read_at(fd, &record, sizeof(record), 0, kept->path) == STRATA_OK &&
           record.checksum == st_checksum64(&record, offsetof(struct record, checksum)) && record.key == kept->key;
    close(fd);
    st_error_clear();
    if (good)
        *rates = record.rates;
    return good;
}

/* --- writing --- */

static bool is_whole(const struct st_rates *rates, unsigned what)
{
    return ((what & ST_MEASURE_COMPUTE) == 0 || rates->matmul_flops > 0) &&
           ((what & ST_MEASURE_LINKS) == 0 || (rates->upload > 0 && rates->download > 0)) &&
           ((what & ST_MEASURE_UPDATE) == 0 || (rates->update > 0 && rates->checksum > 0)) &&
           ((what & ST_MEASURE_DISK) == 0 || (rates->read > 0 && rates->write > 0));
}

/* Those that nobody will read any more; one that cannot be removed stays. */
static void remove_old(const char *path)
{
    char place[ST_PATH_MAX];
    DIR *dir = st_path_dir(place, path) == STRATA_OK && !st_fault_refuses("rates.old") ? opendir(place) : NULL;
    const struct dirent *entry;

    for (uint32_t i = 0; dir != NULL && i < ENTRIES_LOOKED && (entry = st_dir_next(dir)) != NULL; i++) {
        struct stat info;
        uint64_t age;

        if (strncmp(entry->d_name, NAME_MARK, strlen(NAME_MARK)) == 0 && strlen(entry->d_name) == strlen(NAME_MARK) + 16 &&
            fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode) &&
            !is_of_this_hour(&info, &age))
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (dir != NULL)
        closedir(dir);
}

strata_status st_rates_kept_write(const struct st_rates_kept *kept, const struct st_rates *rates, bool *written)
{
    struct record record;
    struct st_new_file file;
    strata_status st;

    *written = false;
    if (!is_whole(rates, kept->what))
        return STRATA_OK;
    memset(&record, 0, sizeof(record));
    record.key = kept->key;
    record.rates = *rates;
    record.checksum = st_checksum64(&record, offsetof(struct record, checksum));
    if ((st = st_new_file_create_as(&file, kept->path, ST_NEW_FILE_OVERWRITE | ST_NEW_FILE_PARENTS, 0600)) != STRATA_OK)
        return st;
    if ((st = st_new_file_write_at(&file, &record, sizeof(record), 0)) == STRATA_OK)
        st = st_new_file_commit(&file);
    st_new_file_abort(&file);
    if (st != STRATA_OK)
        return st;
    *written = true;
    remove_old(kept->path);
    return STRATA_OK;
}
