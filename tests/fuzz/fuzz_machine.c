/* fuzz_machine.c - any bytes as a machine file: no crash; what is accepted is written as a file that reads back the same. */
#include "core/json/json.h"
#include "offload/machine/machine.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static strata_status read_bytes(struct st_machine *out, const void *data, size_t size)
{
    const int fd = memfd_create("machine", MFD_CLOEXEC);
    char path[64];
    strata_status st;

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    st = st_machine_read(out, path);
    close(fd);
    return st;
}

static void check_round_trip(const struct st_machine *machine)
{
    struct st_json_writer w;
    struct st_machine again;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    check(file != NULL);
    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_machine_put_fields(machine, &w);
    st_json_object_close(&w);
    check(fclose(file) == 0);
    check(read_bytes(&again, text, bytes) == STRATA_OK);
    check(again.capacity.workers == machine->capacity.workers &&
          again.capacity.device_is_host == machine->capacity.device_is_host);
    check(memcmp(again.capacity.bytes, machine->capacity.bytes, sizeof(again.capacity.bytes)) == 0);
    check(again.rates.matmul_flops == machine->rates.matmul_flops && again.rates.upload == machine->rates.upload &&
          again.rates.update == machine->rates.update);
    check(again.rates.read == machine->rates.read && again.rates.write == machine->rates.write &&
          again.rates.mixed == machine->rates.mixed);
    check(again.rates.link_node == machine->rates.link_node && again.rates.link_nodes == machine->rates.link_nodes &&
          again.rates.latency_node == machine->rates.latency_node && again.rates.latency_nodes == machine->rates.latency_nodes &&
          again.rates.handover == machine->rates.handover && again.rates.latency_io == machine->rates.latency_io &&
          again.rates.launch == machine->rates.launch && again.rates.node_ranks == machine->rates.node_ranks);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_machine machine;
    const strata_status st = read_bytes(&machine, data, size);

    check(st == STRATA_OK || st == STRATA_E_INPUT);
    if (st == STRATA_OK)
        check_round_trip(&machine);
    return 0;
}
