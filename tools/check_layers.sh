#!/bin/sh
# Checks who includes whom, folder by folder (docs/design.md, "Tree"): no folder includes upwards, what is called *_internal.h stays
# in its folder (tests may see it), and each foreign header has one home.  And that what people read is printed through core/base/print.h,
# which writes out what a terminal would obey.  And that each call into the system lies in a function that passes a fault site
# (core/base/fault.h), so that tests can make it fail.  And that the library asks no function for numbers and letters that follows
# the program's locale (core/base/number.h, text.h).  And that no two files of different folders include each other: a header and its
# source count as one.
#
#     tools/check_layers.sh [ROOT]
#
# Prints one line per offence and exits 1; prints the count of checked includes and exits 0 otherwise.
set -eu
cd "${1:-$(dirname "$0")/..}"

# shellcheck disable=SC2046 # file names in this tree have no spaces
exec awk '
BEGIN {
    # Folder -> what it may include beside itself: folders (ending in /) or single headers.  A folder inside has a row of its own.
    allow["include/strata"] = "strata/"
    allow["core/base"] = "strata/"
    allow["core/system"] = "core/base/ strata/"
    allow["core/json"] = "core/base/ core/system/file.h strata/"
    allow["core/yaml"] = "core/base/ core/system/file.h core/json/ strata/"
    allow["core/trace"] = "core/base/ core/system/ core/json/ strata/"
    allow["kernels"] = "strata/"
    allow["kernels/ops"] = "kernels/op_shapes.h strata/"
    allow["kernels/isa"] = "kernels/kernels.h kernels/ops/ops.h core/base/cpu.h strata/"
    allow["kernels/update"] = allow["kernels/finish"] = allow["kernels/cast"] = "kernels/kernels.h kernels/moment_codes.h kernels/isa/ strata/"
    allow["kernels/matmul"] = "kernels/op_shapes.h kernels/kernels.h core/base/cpu.h strata/"
    allow["kernels/cuda"] = "kernels/op_shapes.h kernels/kernels.h kernels/isa/scalar.h kernels/update/update_step.h strata/"
    allow["nvme/method"] = "core/ strata/"
    allow["nvme/mover"] = "nvme/method/ core/ strata/"
    allow["nvme/swap"] = "nvme/method/ nvme/mover/ core/ strata/"
    allow["nvme/handle"] = "nvme/method/ nvme/mover/ core/ strata/"
    allow["nvme/measure"] = "nvme/method/ nvme/mover/ nvme/swap/ core/ strata/"
    allow["offload"] = "kernels/kernels.h core/ strata/"
    allow["offload/optim"] = "kernels/ core/ strata/"
    allow["offload/comm"] = "offload/device/cuda/cuda_library.h offload/device/cuda/cuda_stream.h core/ strata/"
    allow["offload/device"] = "kernels/op_shapes.h kernels/kernels.h kernels/matmul/matmul.h core/ strata/"
    allow["offload/device/cpu"] = "offload/device/device.h offload/device/tensor_ops.h kernels/ core/ strata/"
    allow["offload/device/cuda"] = "offload/device/device.h offload/device/tensor_ops.h kernels/cuda/ core/ strata/"
    allow["offload/device/paced"] = "offload/compute.h offload/device/device.h offload/device/op_traffic.h offload/machine/rates.h kernels/ core/ strata/"
    allow["offload/machine"] = "offload/compute.h offload/device/device.h offload/device/op_traffic.h offload/device/tensor_ops.h offload/optim/ nvme/ kernels/ core/ strata/"
    allow["offload/program"] = "offload/compute.h offload/workload.h kernels/kernels.h core/ strata/"
    allow["offload/simulate"] = "offload/compute.h offload/device/op_traffic.h offload/program/ offload/machine/ core/ strata/"
    allow["offload/checkpoint"] = "offload/workload.h offload/program/ offload/engine/train_state.h kernels/kernels.h nvme/ core/ strata/"
    allow["offload/plan"] = "offload/simulate/ offload/program/ offload/machine/ offload/optim/ kernels/kernels.h core/ strata/"
    allow["offload/engine"] = "offload/compute.h offload/comm/comm.h offload/comm/comm_lane.h offload/program/ offload/checkpoint/ offload/device/device.h offload/device/device_timed.h offload/optim/ nvme/ kernels/kernels.h kernels/widen.h kernels/moment_codes.h core/ strata/"
    allow["offload/config"] = "offload/optim/ offload/machine/machine.h offload/program/policy.h offload/engine/engine.h core/ strata/"
    allow["recipes"] = "offload/config/ core/ strata/"
    allow["model"] = "model/adapter/adapter.h offload/device/tensor_ops.h offload/workload.h offload/compute.h kernels/kernels.h core/ strata/"
    allow["model/adapter"] = "core/ strata/"
    allow["model/decoder"] = "model/model.h model/layout.h offload/device/tensor_ops.h core/ strata/"
    allow["model/hf"] = "model/adapter/adapter.h model/layers.h kernels/kernels.h kernels/widen.h model/model.h model/nf4.h model/family.h model/layout.h model/decoder/sampler.h core/ strata/"
    allow["text/tokenizer"] = "core/ strata/"
    allow["text/data"] = "text/tokenizer/tokenizer.h core/ strata/"
    allow["text/data/dialog"] = "text/tokenizer/tokenizer.h text/template/template.h core/ strata/"
    allow["text/data/rows"] = "text/data/dialog/dialog.h text/data/token_meta.h text/data/token_writer.h text/data/tokens.h text/data/texts.h core/ strata/"
    allow["text/template"] = "core/base/ core/json/json.h strata/"
    allow["bench"] = "offload/config/ offload/engine/engine.h offload/plan/plan.h offload/device/device.h core/ strata/"
    allow["bench/io"] = "bench/bench.h bench/bench_setup.h nvme/ core/ strata/"
    allow["bench/step"] = "api/plan_case.h advise/case.h bench/bench.h bench/bench_setup.h bench/null_model.h offload/config/config_options.h offload/device/ offload/machine/"
    allow["bench/step"] = allow["bench/step"] " offload/plan/plan.h offload/simulate/ offload/comm/comm.h model/model.h core/ strata/"
    allow["bench/roofs"] = "bench/bench.h bench/bench_setup.h offload/comm/comm.h offload/device/device.h offload/device/tensor_ops.h offload/device/cuda/link_roof.h kernels/ core/ strata/"
    allow["bench/update"] = "bench/bench.h bench/bench_setup.h bench/null_model.h bench/roofs/ nvme/swap/ kernels/ core/ strata/"
    allow["advise"] = "offload/ model/ core/ strata/"
    allow["run"] = "model/ offload/ nvme/swap/ kernels/ core/ strata/"
    allow["api"] = "advise/ run/ recipes/ text/ model/ offload/ nvme/ kernels/ core/ strata/"
    allow["cli"] = "cli/ core/ strata/"
    allow["cli/commands"] = "cli/ core/ strata/ bench/bench.h"
    allow["cli/options"] = "core/ strata/"
    allow["cli/report"] = "cli/cli_signals.h cli/options/told.h core/ strata/"
    # Tests see the layers they link and the fixtures; tests of several layers (tests/engine, ...) see all.
    allow["tests/core"] = "core/ strata/ tests/"
    allow["tests/kernels"] = "kernels/ core/ strata/ tests/"
    allow["tests/nvme"] = "nvme/ core/ strata/ tests/"
    allow["tests/offload"] = "offload/ nvme/ kernels/ core/ strata/ tests/"
    allow["tests/api"] = "api/ run/ core/base/ core/json/ strata/ tests/"
    allow["tests/recipes"] = "recipes/ offload/config/ core/ strata/ tests/"
    allow["tests/text"] = "text/ core/ strata/ tests/"
    allow["tests/model"] = "model/ text/ " allow["tests/offload"]
    all = "cli/ bench/ api/ run/ advise/ recipes/ text/ " allow["tests/model"]

    # Foreign header (a prefix) -> the files it may appear in (prefixes).
    home["cJSON.h"] = home["cjson/"] = "core/json/json.c core/json/json_build.c"
    home["yaml.h"] = "core/yaml/yaml.c"
    home["hwloc"] = "core/system/topology.c"
    home["xxhash.h"] = home["xxh"] = "core/base/checksum"
    home["liburing"] = "nvme/method/io_uring_internal.h"
    home["libaio.h"] = "nvme/method/io_aio.c"
    home["dnnl"] = home["oneapi/"] = home["omp.h"] = "kernels/matmul/matmul_dnnl.c"
    home["cuda"] = home["cublas"] = "offload/device/cuda/ kernels/cuda/ tests/cuda/"
    home["mpi.h"] = "offload/comm/mpi_plugin.c tests/offload/mpi_within.c" # a program that has begun MPI itself
    home["nccl"] = "offload/comm/nccl_library_internal.h"
    home["pcre2.h"] = "text/tokenizer/regex.c model/adapter/adapter_pattern.c" # what Oniguruma and what Python would find
    home["cmocka.h"] = "tests/"

    # Who may write to a FILE without core/base/print.h: files for programs, and the one place itself.
    writers = "core/base/print.c core/base/wrap.c core/json/json_writer.c core/trace/trace_write.c offload/config/config_print.c recipes/recipe_print.c model/hf/safetensors.c bench/io/bench_io.c bench/io/io_fio.c"
    writers = writers " cli/commands/generation_text.c core/json/json_edit.c" # the bytes of a model, into a pipe; a configuration
    printing = "(^|[^a-z_])(v?f?printf|v?dprintf|f?puts|f?putc|putchar|fwrite|perror|psignal|error)(_unlocked)?\\("

    # Calls into the system.  Each lies in a function that passes a fault site, but for these: file, how many, why.  This list may
    # only shrink.
    calls = "(io_uring_(queue_init_params|register_[a-z_]*|submit[a-z_]*|wait_[a-z_]*|enter)|io_(setup|submit|getevents|cancel)|open|openat|fopen|fdopen|opendir|fdopendir|readdir|read|fread|write|p?(read|write)v?|pwritev2|preadv2|[lf]?stat|fstatat|statx|f?stat(v?fs)|mkdir|mkdirat|rename|renameat2?|link|linkat|symlink|unlink|unlinkat|rmdir|fsync|fdatasync|ftruncate|fallocate|posix_fallocate|mmap|mlock|flock|fcntl|ioctl|pipe2?|p?poll|eventfd|timerfd_create|signalfd|posix_spawnp?|fork|pthread_create|getrandom|dlopen|realpath|memfd_create|access|faccessat|socket|socketpair|accept4|connect|getsockname|getpeername|getsockopt|sendmsg|recvmsg|sendto|recvfrom|send|recv|getaddrinfo)\\("
    calls = "(^|[^a-zA-Z0-9_.>])" calls
    unsited("bench/io/io_files.c", 1, "removes a file of its own")
    unsited("cli/cli_signals.c", 2, "says the last word to standard error; nobody is left to be told")
    unsited("cli/main.c", 1, "makes sure of descriptors 0 to 2, or ends")
    unsited("core/base/print.c", 2, "its caller passes print.flush; how wide a terminal is")
    unsited("core/system/file_new.c", 4, "removes what failed; its callers pass the sites")
    unsited("nvme/handle/io_handle_file.c", 1, "removes what failed: the earlier failure is the one to report")
    unsited("nvme/handle/io_handle_event.c", 1, "an eventfd of its own")
    unsited("nvme/method/io_aio.c", 3, "an eventfd of its own; a cancellation that may come late")
    unsited("nvme/method/io_threads.c", 3, "its caller passes nvme.cqe")
    unsited("nvme/method/io_uring.c", 5, "an eventfd of its own; waits that are repeated; nvme.cqe is passed where requests end")
    unsited("nvme/method/io_uring_ring.c", 1, "saves a look-up where it can")
    unsited("nvme/mover/users.c", 2, "removes a file of its own; the next run does what it does not")
    unsited("nvme/swap/swap.c", 3, "removes what is left while the program ends; the next run sweeps what stays")
    unsited("offload/device/cuda/cuda_library.c", 1, "is this a library: it is opened after")
    offences = 0
    checked = 0
}

# In a tree of the test the files are not there.
function unsited(file, count, why)
{
    if (system("test -e " file) == 0)
        unsited_count[file] = count
}

# The function before has ended: its calls, where it has passed no site.
function end_of_function(    i)
{
    for (i = 1; i <= call_count && !sited; i++)
        if (++unsited_seen[last_file] > unsited_count[last_file]) {
            printf "%s:%d: calls the system in a function without a fault site: core/base/fault.h\n", last_file, call_at[i]
            offences++
        }
    call_count = 0
    sited = 0
}

FNR == 1 {
    end_of_function()
    last_file = FILENAME
}

/^\{/ {
    end_of_function()
}

# passed(): how core/system/file.c passes them.
/(st_fault|st_fault_refuses|[^a-z_]passed)\(/ {
    sited = 1
}

# A declaration of a member or a function of ours with such a name is indented, too; calls through a pointer are not the system.
/^[ \t]/ && $0 !~ /^ *(\/\*|\*)/ && $0 !~ /\(\*/ && FILENAME ~ /^(core|nvme|offload|recipes|text|model|run|advise|api|cli|bench)\// && FILENAME ~ /\.c$/ {
    line = $0
    gsub(/"[^"]*"/, "", line)
    sub(/\/\*.*/, "", line)
    if (line ~ calls)
        call_at[++call_count] = FNR
}

# The folder that a file is in; of tests, the one below tests/.
function folder_of(file)
{
    if (match(file, /^tests\/[^\/]+\//))
        return substr(file, 1, RLENGTH - 1)
    sub(/\/[^\/]*$/, "", file)
    return file
}

# True if text starts with one of the space-separated prefixes.
function starts_with_any(text, prefixes,    list, count, i)
{
    count = split(prefixes, list, " ")
    for (i = 1; i <= count; i++)
        if (index(text, list[i]) == 1)
            return 1
    return 0
}

function offence(why)
{
    printf "%s:%d: %s\n", FILENAME, FNR, why
    offences++
}

function check_own(header, folder)
{
    if (header ~ /(^|\/)\.\.?\//)
        offence("\"" header "\": name headers by their folder, not by . or ..")
    else if (header !~ /\// && folder !~ /^tests/)
        offence("\"" header "\": name the folder: \"" folder "/" header "\"")
    else if (header ~ /_internal\.h$/ && folder !~ /^tests/ && folder_of(header) != folder)
        offence("\"" header "\" is for the files of " folder_of(header) " alone")
    else if (header !~ /\// || folder_of(header) == folder)
        return
    else if (!starts_with_any(header, allow[folder]))
        offence(folder " may not include \"" header "\" (allowed: " allow[folder] ")")
}

function check_foreign(header,    prefix)
{
    if (starts_with_any(header, "core/ kernels/ nvme/ offload/ recipes/ text/ model/ run/ advise/ api/ bench/ cli/ strata/"))
        offence("<" header ">: our own headers are included with quotes")
    for (prefix in home)
        if (index(header, prefix) == 1 && !starts_with_any(FILENAME, home[prefix]))
            offence("<" header "> belongs in " home[prefix] " alone")
}

$0 ~ printing && $0 !~ /^ *(\/\*|\*)/ && FILENAME ~ /^(core|kernels|nvme|offload|recipes|text|model|run|advise|api|cli|bench)\// {
    if (!starts_with_any(FILENAME, writers))
        offence("prints past core/base/print.h: st_print, st_print_text, st_log or st_error")
}

/(^|[^a-z_])(tolower|toupper|strn?casecmp|is(alpha|alnum|space|print|graph|punct|upper|lower))\(/ && $0 !~ /^ *(\/\*|\*)/ && FILENAME ~ /^(core|kernels|nvme|offload|recipes|text|model|run|advise|api)\// {
    offence("takes letters as the locale of the program has them: core/base/text.h")
}

# The library names keys, never options of a program; files of trainers (recipes/) have such words, and so have commands of other programs.
/"/ && FILENAME ~ /^(core|kernels|nvme|offload|text|model|advise|run|api)\// {
    line = $0
    sub(/\/\*.*/, "", line)
    if (line ~ /"([^"\\]|\\.)*--[a-z%]/ && line !~ /hf download|wsl --|models--/)
        offence("a sentence that names an option of the program: name the key (core/base/error.h)")
}

/(^|[^a-z_])(strtod|strtof|atof)\(/ && $0 !~ /^ *(\/\*|\*)/ && FILENAME ~ /^(core|kernels|nvme|offload|recipes|text|model|run|advise|api)\// {
    if (FILENAME != "core/base/number.c")
        offence("reads a number as the locale of the program has it: st_number_read() of core/base/number.h")
}

# A header or a source without its ending; public headers are included without their first folder.
function unit_of(file)
{
    sub(/\.[a-z]+$/, "", file)
    return file ~ /^strata\// ? "include/" file : file
}

# Remembers who includes whom; the other direction may have been met before.
function check_circle(header,    from, to)
{
    from = unit_of(FILENAME)
    to = unit_of(header)
    if (folder_of(from) == folder_of(to))
        return
    included[from " " to] = 1
    if ((to " " from) in included)
        offence("\"" header "\": " to " and " from " include each other")
}

/^[ \t]*#[ \t]*include[ \t]*["<]/ {
    folder = folder_of(FILENAME)
    line = $0
    sub(/^[ \t]*#[ \t]*include[ \t]*/, "", line)
    own = substr(line, 1, 1) == "\""
    header = substr(line, 2)
    sub(/[">].*/, "", header)
    checked++
    if (folder ~ /^tests/ && !(folder in allow))
        allow[folder] = all
    if (!(folder in allow))
        offence("folder " folder " has no rule in tools/check_layers.sh")
    else if (own)
        check_own(header, folder)
    if (own && header ~ /\//)
        check_circle(header)
    if (!own)
        check_foreign(header)
}

END {
    end_of_function()
    for (file in unsited_count)
        if (unsited_seen[file] < unsited_count[file]) {
            printf "%s: %d calls without a fault site, not %d: mend its line in tools/check_layers.sh\n", file, unsited_seen[file], unsited_count[file]
            offences++
        }
    if (offences > 0) {
        printf "check_layers: %d offences\n", offences
        exit 1
    }
    printf "check_layers: %d includes, none upwards\n", checked
}
' $(find include core kernels nvme offload recipes text model run advise api cli bench tests -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort) /dev/null
