/* advise/machine_json.c - this machine for programs: the keys of `strata info --json` (docs/json.md). */
#include "advise/machine_facts.h"
#include "offload/device/cuda/gpu_report.h"
#include "offload/machine/machine_report.h"

#include <sys/utsname.h>

static void put_methods(struct st_json_writer *w)
{
    struct st_method_report methods[ST_REPORT_METHODS_MAX];
    const uint32_t count = st_report_methods(methods, ST_REPORT_METHODS_MAX);

    st_json_array_open(w, "io_methods");
    for (uint32_t i = 0; i < count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "name", methods[i].name);
        st_json_put_bool(w, "usable", methods[i].usable);
        st_json_put_bool(w, "automatic", methods[i].automatic);
        st_json_put_string(w, "why", methods[i].why[0] != '\0' ? methods[i].why : NULL);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_disk(struct st_json_writer *w, const struct st_disk_report *disk)
{
    st_json_object_open(w, "device");
    st_json_put_string(w, "name", disk->name[0] != '\0' ? disk->name : NULL);
    st_json_put_string(w, "model", disk->model[0] != '\0' ? disk->model : NULL);
    st_json_put_bool(w, "rotational", disk->rotational);
    st_json_put_string(w, "scheduler", disk->scheduler[0] != '\0' ? disk->scheduler : NULL);
    st_json_put_u64(w, "nr_requests", disk->nr_requests);
    st_json_put_u64(w, "max_sectors_kb", disk->max_sectors_kb);
    st_json_object_close(w);
}

static void put_dirs(struct st_json_writer *w, const struct st_config *of)
{
    st_json_array_open(w, "nvme");
    for (uint32_t i = 0; of != NULL && i < of->nvme_dir_count; i++) {
        struct st_dir_report report;

        st_report_dir(&report, of->nvme_dirs[i]);
        st_json_object_open(w, NULL);
        st_json_put_string(w, "dir", of->nvme_dirs[i]);
        st_json_put_string(w, "filesystem", report.filesystem[0] != '\0' ? report.filesystem : NULL);
        st_json_put_u64(w, "free_bytes", report.free_bytes);
        st_json_put_bool(w, "writable", report.writable);
        st_json_put_u64(w, "direct_offset_alignment", report.offset_align);
        st_json_put_u64(w, "direct_memory_alignment", report.memory_align);
        st_json_put_bool(w, "direct_works", report.direct_works);
        st_json_put_bool(w, "registers", report.registers);
        put_disk(w, &report.disk);
        st_json_put_string(w, "problem", report.problem[0] != '\0' ? report.problem : NULL);
        st_json_put_string(w, "advice", report.advice[0] != '\0' ? report.advice : NULL);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_nodes(struct st_json_writer *w, const struct st_topology *topo)
{
    char list[256];

    st_json_array_open(w, "nodes");
    for (uint32_t i = 0; i < st_topology_numa_count(topo); i++) {
        const struct st_numa_node node = st_topology_numa_node(topo, i);

        st_json_object_open(w, NULL);
        st_json_put_u64(w, "node", node.os_index);
        st_json_put_u64(w, "memory_bytes", node.memory_bytes);
        st_json_put_string(w, "cores", st_topology_units_text(topo, UINT32_MAX, i, list, sizeof(list)));
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_cpu(struct st_json_writer *w, const struct st_machine_facts *of)
{
    const struct st_topology *topo = of->topology;
    char list[256];
    const char *isas[ST_REPORT_ISAS_MAX];
    const uint32_t count = st_report_isas(isas);

    st_json_object_open(w, "cpu");
    st_json_put_string(w, "name", st_topology_cpu_name(topo));
    st_json_put_u64(w, "usable_cores", st_topology_core_count(topo));
    st_json_put_u64(w, "numa_nodes", st_topology_numa_count(topo));
    put_nodes(w, topo);
    st_json_put_u64(w, "workers", of->workers);
    st_json_put_bool(w, "quota", st_topology_has_quota(topo));
    st_json_put_string(w, "worker_cores", st_topology_units_text(topo, of->workers, UINT32_MAX, list, sizeof(list)));
    st_json_array_open(w, "isa_found");
    for (uint32_t i = 0; i < count; i++)
        st_json_put_string(w, NULL, isas[i]);
    st_json_array_close(w);
    st_json_put_string(w, "kernels_used", st_report_kernels(0));
    st_json_object_close(w);
}

static const char *const memory_kinds[] = {
    [ST_MEMORY_OWN] = "own", [ST_MEMORY_COHERENT] = "coherent", [ST_MEMORY_UNIFIED] = "unified"};

/* "gpu": the first one's name, or "none: " and why. */
static void put_gpus(struct st_json_writer *w)
{
    struct st_gpu_report r;
    char none[sizeof(r.problem) + 8];

    st_gpu_report(&r);
    snprintf(none, sizeof(none), "none: %s", r.problem);
    st_json_put_string(w, "gpu", r.count > 0 && r.problem[0] == '\0' ? r.gpus[0].name : none);
    st_json_array_open(w, "gpus");
    for (uint32_t i = 0; i < r.count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "device_name", r.gpus[i].name);
        st_json_put_string(w, "pci_bus_id", r.gpus[i].pci[0] != '\0' ? r.gpus[i].pci : NULL);
        st_json_put_string(w, "uuid", r.gpus[i].uuid);
        st_json_put_bool(w, "mig_slice", r.gpus[i].is_slice);
        st_json_put_u64(w, "memory_bytes", r.gpus[i].bytes);
        st_json_put_u64(w, "memory_free_bytes", r.gpus[i].free_bytes);
        st_json_put_u64(w, "memory_usable_bytes", r.gpus[i].usable_bytes);
        st_json_put_u64(w, "compute_major", r.gpus[i].major);
        st_json_put_u64(w, "compute_minor", r.gpus[i].minor);
        st_json_put_string(w, "memory_kind", memory_kinds[r.gpus[i].memory]);
        st_json_put_bool(w, "bf16", !r.gpus[i].lacks_bf16);
        st_json_object_close(w);
    }
    st_json_array_close(w);
    st_json_put_u64(w, "cuda_driver", r.driver);
    st_json_put_u64(w, "cuda_runtime", r.runtime);
    st_json_put_string(w, "cublaslt", r.blas[0] != '\0' ? r.blas : NULL);
    st_json_put_u64(w, "cublaslt_version", r.blas_version);
    st_json_put_string(w, "nccl", r.nccl[0] != '\0' ? r.nccl : NULL);
    st_json_put_u64(w, "nccl_version", r.nccl_version);
    st_json_put_string(w, "nccl_problem", r.nccl[0] == '\0' ? r.nccl_problem : NULL);
}

static void put_links(struct st_json_writer *w, const struct st_links *l)
{
    st_json_array_open(w, "links");
    for (uint32_t a = 0; a < l->ranks; a++)
        for (uint32_t b = a + 1; b < l->ranks; b++) {
            st_json_object_open(w, NULL);
            st_json_put_u64(w, "rank", a);
            st_json_put_u64(w, "other", b);
            st_json_put_double(w, "bytes_per_second", l->pair[a][b]);
            st_json_object_close(w);
        }
    st_json_array_close(w);
}

void st_machine_facts_put(const struct st_machine_facts *of, struct st_json_writer *w)
{
    const char *const psi = st_report_psi();
    struct utsname os;

    st_json_put_string(w, "version", STRATA_VERSION_STRING);
    st_json_put_u64(w, "wsl", uname(&os) == 0 ? st_report_wsl(os.release) : 0);
    put_cpu(w, of);
    st_json_put_u64(w, "memory_bytes", st_topology_memory_limit(of->topology));
    st_json_put_u64(w, "memory_available_bytes", st_topology_memory_available(of->topology));
    if (st_report_memlock() == UINT64_MAX)
        st_json_put_string(w, "memlock_bytes", NULL);
    else
        st_json_put_u64(w, "memlock_bytes", st_report_memlock());
    st_json_put_string(w, "psi_scope", psi[0] != '\0' ? psi : NULL);
    put_gpus(w);
    put_methods(w);
    put_dirs(w, of->dirs);
    if (of->measured != NULL) {
        st_json_object_open(w, "machine");
        st_machine_put_fields(of->measured, w);
        st_json_object_close(w);
    }
    if (of->links != NULL)
        put_links(w, of->links);
}
