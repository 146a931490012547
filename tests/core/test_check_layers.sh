#!/bin/sh
# Each offence that tools/check_layers.sh must find, planted one at a time in an otherwise good tree.
set -eu
check=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect STATUS FILE LINE [FILE LINE]: the tree with each LINE in its FILE.
expect() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/core/base" "$tree/$(dirname "$2")"
    echo '#include "core/base/log.h"' >"$tree/core/base/good.c"
    echo "$3" >"$tree/$2"
    if [ $# -gt 3 ]; then
        mkdir -p "$tree/$(dirname "$4")"
        echo "$5" >"$tree/$4"
    fi
    if "$check" "$tree" >"$tree.out" 2>&1; then status=0; else status=$?; fi
    if [ "$status" != "$1" ]; then
        echo "$2: $3: exit $status, not $1"
        cat "$tree.out"
        failures=$((failures + 1))
    fi
    rm -f "$tree.out"
}

expect 0 core/base/a.c '#include "core/base/log.h"'
expect 0 core/base/a.c '#include "strata/status.h"'
expect 0 core/base/a.c '#include <stdio.h>'
expect 1 core/base/a.c '#include "nvme/method/io.h"'
expect 1 core/base/a.c '  #  include "offload/plan/plan.h"'
expect 1 core/base/a.c '#include "log.h"'
expect 1 core/base/a.c '#include "../nvme/method/io.h"'
expect 1 core/base/a.c '#include "core/../nvme/method/io.h"'
expect 1 core/base/a.c '#include "core/system/file.h"'
expect 1 core/a.c '#include "core/base/log.h"'
expect 1 core/base/a.c '#include <core/base/log.h>'
expect 0 kernels/isa/a.c '#include "core/base/cpu.h"'
expect 1 nvme/swap/a.c '    return st_error(st, "lower --host-memory");'
expect 1 run/a.c '    put("--keep %u");'
expect 1 api/a.c '    put("a \\"word\\" and --keep");'
expect 0 api/a.c '    put("lower strata.host_memory"); /* --host-memory */'
expect 0 core/base/a.c '    put("hf download %s --local-dir DIR");'
expect 0 recipes/recipe_a.c '    put("--seq-len");'
expect 0 cli/a.c '    put("--seq-len");'
expect 1 kernels/ops/a.c '#include "kernels/isa/avx2.h"'
expect 1 kernels/isa/a.c '#include "core/base/error.h"'
expect 1 kernels/ops/a.inc '#include "core/base/error.h"'
expect 1 nvme/swap/a.h '#include "offload/plan/plan.h"'
expect 0 offload/engine/a.c '#include "nvme/swap/swap.h"'
expect 1 offload/plan/a.c '#include "nvme/swap/swap.h"'
expect 1 offload/simulate/a.c '#include "offload/plan/plan.h"'
expect 1 offload/engine/a.c '#include "offload/plan/plan.h"'
expect 1 offload/a.c '#include "model/model.h"'
expect 0 model/a.c '#include "offload/workload.h"'
expect 1 model/a.c '#include "offload/engine/engine.h"'
expect 0 model/hf/a.c '#include "model/layout.h"'
expect 1 model/hf/a.c '#include "offload/device/device.h"'
expect 1 model/a.c '#include "nvme/method/io.h"'
expect 1 cli/a.c '#include "nvme/method/io.h"'
expect 1 cli/a.c '#include "kernels/kernels.h"'
expect 1 cli/a.c '#include "offload/engine/engine.h"'
expect 1 cli/run.c '#include "text/data/texts.h"'
expect 1 cli/commands/cmd_plan.c '#include "api/handles.h"'
expect 0 bench/step/a.c '#include "api/plan_case.h"'
expect 1 bench/step/a.c '#include "api/handles.h"'
expect 0 cli/commands/a.c '#include "bench/bench.h"'
expect 1 cli/commands/a.c '#include "bench/bench_setup.h"'
expect 1 cli/report/a.c '#include "bench/bench.h"'
expect 1 cli/report/a.c '#include "api/handles.h"'
expect 0 cli/report/a.c '#include "cli/cli_signals.h"'
expect 1 cli/options/a.c '#include "cli/report/metrics.h"'
expect 1 cli/new/a.c '#include "core/base/error.h"'
expect 0 nvme/swap/a.c '#include "nvme/swap/a_internal.h"'
expect 1 nvme/measure/a.c '#include "nvme/swap/a_internal.h"'
expect 1 nvme/swap/a.c '#include "nvme/handle/a.h"'
expect 0 tests/nvme/a.c '#include "nvme/swap/a_internal.h"'
expect 1 offload/a.c '#include "bench/bench.h"'
expect 0 bench/update/a.c '#include "nvme/swap/swap.h"'
expect 1 bench/io/a.c '#include "bench/update/planes.h"'
expect 1 bench/a.c '#include "cli/options/args.h"'
expect 1 include/strata/a.h '#include "core/base/error.h"'
expect 1 tests/core/a.c '#include "nvme/method/io.h"'
expect 0 tests/nvme/a.c '#include "nvme/method/io.h"'
expect 0 tests/nvme/a.c '#include "fixture.h"'
expect 1 tests/nvme/a.c '#include "offload/plan/plan.h"'
expect 0 tests/engine/a.c '#include "offload/plan/plan.h"'
expect 0 tests/engine/a.c '#include "tests/engine/rig.h"'
expect 0 core/json/json.c '#include <cJSON.h>'
expect 1 offload/config/config.c '#include <cJSON.h>'
expect 1 offload/a.c '#include <hwloc.h>'
expect 1 offload/a.c '#include <hwloc/glibc-sched.h>'
expect 1 nvme/swap/swap.c '#include <liburing.h>'
expect 0 nvme/method/io_uring_internal.h '#include <liburing.h>'
expect 1 kernels/isa/a.c '#include <dnnl.h>'
expect 1 offload/plan/plan.c '#include <cuda_runtime.h>'
expect 1 core/base/a.c '#include <cmocka.h>'
# Two folders may include files of each other, but no two files may, by header or source.
expect 0 offload/engine/a.c '#include "offload/checkpoint/b.h"' offload/checkpoint/b.h '#include "offload/engine/train_state.h"'
expect 1 offload/engine/train_state.c '#include "offload/checkpoint/b.h"' offload/checkpoint/b.h '#include "offload/engine/train_state.h"'
expect 1 offload/engine/train_state.h '#include "offload/checkpoint/b.h"' offload/checkpoint/b.c '#include "offload/engine/train_state.h"'
expect 0 offload/engine/a.c '#include "offload/engine/b.h"' offload/engine/b.h '#include "offload/engine/a.h"'
expect 1 cli/a.c '    fprintf(stderr, "%s", name);'
expect 1 cli/a.c '    printf("%s", name);'
expect 1 bench/a.c '    fputs(name, file);'
expect 1 nvme/swap/a.c '    perror(name);'
expect 1 offload/a.c '        putchar(c);'
expect 0 cli/a.c '    st_print(stderr, "%s", name);'
expect 0 cli/a.c '    snprintf(text, sizeof(text), "%s", name);'
expect 0 cli/a.c '__attribute__((format(printf, 2, 3)))'
expect 0 core/json/json_writer.c '    fputs(text, file);'
expect 0 tests/cli/a.c '    printf("%s", name);'
expect 1 model/a.c '    value = strtod(text, &end);'
expect 0 model/a.c '    value = st_number_read(text, &end);'
expect 0 cli/a.c '    value = strtod(text, &end);'
expect 1 core/base/a.c '    if (strcasecmp(name, "gib") == 0)'
expect 1 model/a.c '    c = tolower((unsigned char)c);'
expect 1 offload/a.c '    while (isspace((unsigned char)*at))'
expect 0 model/a.c '    if (isdigit((unsigned char)*at) && st_text_same(name, "gib"))'
expect 1 core/base/a.c '    fd = open(path, O_RDONLY);'
expect 1 nvme/swap/a.c '    if (fstat(fd, &info) != 0)'
expect 1 cli/a.c '    file = fopen(path, "re");'
expect 1 model/a.c '    entries = opendir(dir);'
expect 0 core/base/a.c '    st = ops->open(&io, &opts);'
expect 0 core/base/a.c '    /* open(2) */'
expect 1 core/base/a.c '#include "core/base/fault.h"
    fd = open(path, O_RDONLY);'
expect 0 core/base/a.c '{
    const int fd = st_fault_refuses("a.open") ? -1 : open(path, O_RDONLY);
}'
expect 0 core/base/a.c '{
    int res = (int)st_fault("a.open", 0);

    if (res == 0)
        res = open(path, O_RDONLY);
}'
expect 1 core/base/a.c '{
    int res = (int)st_fault("a.open", 0);
}

static int b(const char *path)
{
    return open(path, O_RDONLY);
}'
expect 1 nvme/swap/a.c '    rc = io_uring_queue_init_params(depth, ring, &params);'
# A file with as many of them as its line says, one more, one less.
expect 0 cli/cli_signals.c '    (void)!write(STDERR_FILENO, text, length);
    return poll(&standard_error, 1, 0);'
expect 1 cli/cli_signals.c '    (void)!write(STDERR_FILENO, text, length);
    (void)!write(STDERR_FILENO, text, length);
    return poll(&standard_error, 1, 0);'
expect 1 cli/cli_signals.c '    return poll(&standard_error, 1, 0);'
[ "$failures" = 0 ]
