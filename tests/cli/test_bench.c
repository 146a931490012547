/* tests/cli/test_bench.c - strata bench at tiny sizes: which rows come, what their numbers say of each other, and what is left.
 */
#include "core/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"

#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ROWS_MAX 128u

static const char *const common_keys[] = {"name", "variant", "bytes", "seconds", "gb_per_s", "roof_gb_per_s", "ratio"};
#define COMMON_KEYS (sizeof(common_keys) / sizeof(common_keys[0]))

/* The JSON rows of one run. */
struct rows {
    struct program p;
    st_json *row[ROWS_MAX];
    uint32_t count;
};

static double number(const struct rows *r, uint32_t i, const char *key)
{
    const st_json *n = st_json_get(r->row[i], key);

    assert_non_null(n);
    return st_json_type(n) == ST_JSON_NULL ? NAN : st_json_number(n);
}

static const char *text(const struct rows *r, uint32_t i, const char *key)
{
    const st_json *n = st_json_get(r->row[i], key);

    assert_non_null(n);
    return st_json_string(n);
}

static void assert_close(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-9 * fabs(b));
}

/* Every row begins with the keys that all benches share; its rates are its bytes by its seconds, where it has bytes. */
static void check_common(const struct rows *r, uint32_t i)
{
    const st_json *n = st_json_first(r->row[i]);

    for (size_t k = 0; k < COMMON_KEYS; k++, n = st_json_next(n)) {
        assert_non_null(n);
        assert_string_equal(st_json_name(n), common_keys[k]);
    }
    assert_true(number(r, i, "seconds") > 0 && isfinite(number(r, i, "seconds")));
    if (number(r, i, "bytes") == 0) {
        assert_true(isnan(number(r, i, "gb_per_s")) && isnan(number(r, i, "roof_gb_per_s")));
        return;
    }
    assert_close(number(r, i, "gb_per_s"), number(r, i, "bytes") / number(r, i, "seconds") * 1e-9);
    if (!isnan(number(r, i, "roof_gb_per_s")))
        assert_close(number(r, i, "ratio"), number(r, i, "gb_per_s") / number(r, i, "roof_gb_per_s"));
}

static void run_rows(const struct workplace *w, struct rows *r, const char *command)
{
    char *save = NULL;

    *r = (struct rows){0};
    workplace_run_ok(w, &r->p, command);
    assert_string_equal(r->p.err, "");
    for (char *line = strtok_r(r->p.out, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        assert_true(r->count < ROWS_MAX);
        assert_int_equal(st_json_parse(&r->row[r->count], line, strlen(line), "row"), STRATA_OK);
        check_common(r, r->count++);
    }
}

static void free_rows(struct rows *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        st_json_free(r->row[i]);
    program_free(&r->p);
}

/* --- optim --- */

/* Bytes per parameter; 8-bit moments have a scale of 4 bytes for 256 each. */
static const struct layout {
    const char *name;
    double read, written;
    bool divides;
} layouts[] = {
    {"split", 14, 12, true},
    {"full", 14, 14, true},
    {"fp32", 16, 12, true},
    {"split_bf16m", 10, 8, true},
    {"full_bf16m", 10, 10, true},
    {"split_8bit", 8 + 2.0 / 64, 6 + 2.0 / 64, true},
    {"full_8bit", 8 + 2.0 / 64, 8 + 2.0 / 64, true},
    {"adagrad", 10, 8, true},
    {"adagrad_full", 10, 10, true},
    {"lion", 10, 8, false},
    {"lion_full", 10, 10, false},
    {"sgd", 10, 8, false},
    {"sgd_full", 10, 10, false},
};
#define LAYOUT_COUNT (sizeof(layouts) / sizeof(layouts[0]))

/* The bytes are the layout's, and the roof is the lower of the two, which the row names. */
static void check_optim(const struct rows *r, uint32_t i, const struct layout *layout, double params)
{
    const bool stream = strncmp(text(r, i, "variant"), "stream", 6) == 0;
    const double memory = number(r, i, "memory_gb_per_s"), arithmetic = number(r, i, "arith_gb_per_s");

    assert_string_equal(text(r, i, "name"), layout->name);
    assert_true(number(r, i, "params") == params);
    assert_true(number(r, i, "read_per_param") == layout->read && number(r, i, "written_per_param") == layout->written);
    assert_true(number(r, i, "bytes") == params * (layout->read + layout->written));
    assert_true(number(r, i, "seconds_median") >= number(r, i, "seconds"));
    assert_true(number(r, i, "calls") >= 1);
    assert_int_equal(isnan(arithmetic), stream || !layout->divides);
    assert_close(number(r, i, "roof_gb_per_s"), fmin(memory, arithmetic));
    assert_string_equal(text(r, i, "bound_by"), arithmetic < memory ? "arithmetic" : "memory");
}

/* Division and square root of vector kernels alone: after all else, and without a roof. */
static uint32_t divide_rows(const struct rows *r)
{
    uint32_t count = 0;

    while (count < r->count && strcmp(text(r, r->count - 1 - count, "name"), "divide_sqrt") == 0) {
        assert_true(number(r, r->count - 1 - count, "ns_per_param") > 0);
        assert_true(number(r, r->count - 1 - count, "bytes") == 0);
        count++;
    }
    return count;
}

/* Streams, then kernels, for every layout; the faster stream is the memory's roof of all. */
static void optim_has_a_row_per_layout_and_kernel(void **state)
{
    struct rows r;
    uint32_t passes;

    run_rows(*state, &r, "bench optim --params 100000 --repeats 1 --json");
    passes = (r.count - divide_rows(&r)) / LAYOUT_COUNT;
    assert_int_equal(r.count - divide_rows(&r), passes * LAYOUT_COUNT);
    assert_int_equal(divide_rows(&r), passes - 3); /* streams, scalar */
    for (uint32_t i = 0; i < passes * LAYOUT_COUNT; i++) {
        check_optim(&r, i, &layouts[i / passes], 102400); /* whole blocks */
        assert_true(number(&r, i, "threads") >= 1 && number(&r, i, "threads") <= 2);
    }
    assert_string_equal(text(&r, 0, "variant"), "stream");
    assert_string_equal(text(&r, 1, "variant"), "stream_prefetch");
    assert_string_equal(text(&r, passes - 1, "variant"), "scalar");
    assert_true(fmax(number(&r, 0, "ratio"), number(&r, 1, "ratio")) == 1);
    free_rows(&r);
}

static void optim_takes_one_instruction_set(void **state)
{
    struct rows r;

    run_rows(*state, &r, "bench optim --params 64K --repeats 1 --isa scalar --threads 1 --json");
    assert_int_equal(r.count, 3 * LAYOUT_COUNT);
    assert_string_equal(text(&r, 2, "variant"), "scalar");
    assert_true(number(&r, 2, "threads") == 1);
    assert_true(number(&r, 2, "seconds_median") == number(&r, 2, "seconds"));
    free_rows(&r);
}

/* Layouts in the order of the table however they are named, sizes as they were. */
static void optim_takes_layouts_and_sizes(void **state)
{
    static const double sizes[] = {131072, 4096};
    struct rows r;

    run_rows(*state, &r,
             "bench optim --layout lion,split_8bit full --layout split_8bit --params 128K,1 --repeats 2 --isa scalar --threads 2 "
             "--json");
    assert_int_equal(r.count, 3 * 2 * 3);
    for (uint32_t i = 0; i < r.count; i++) {
        const double params = sizes[i / 3 % 2];

        check_optim(&r, i, &layouts[i < 6 ? 1 : i < 12 ? 5 : 9], params);
        assert_true(number(&r, i, "threads") == (params == 4096 ? 1 : 2)); /* a small tensor wakes nobody */
    }
    free_rows(&r);
}

/* A small tensor by default, too. */
static void optim_has_small_tensors(void **state)
{
    static const double sizes[] = {4096, 65536, 1048576, 16777216};
    struct rows r;

    run_rows(*state, &r, "bench optim --layout sgd --isa auto --repeats 1 --json");
    assert_int_equal((r.count - divide_rows(&r)) % 4, 0);
    for (uint32_t i = 0; i < r.count - divide_rows(&r); i++)
        check_optim(&r, i, &layouts[11], sizes[i / ((r.count - divide_rows(&r)) / 4)]);
    assert_true(number(&r, 0, "calls") > 1);
    free_rows(&r);
}

static void fails(const struct workplace *w, const char *command, const char *sentence)
{
    struct program p;

    workplace_run(w, &p, command);
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, sentence));
    assert_string_equal(p.out, "");
    program_free(&p);
}

static void what_a_bench_does_not_take_is_said(void **state)
{
    fails(*state, "bench optim --layout split,spilt",
          "unknown layout \"spilt\": there are split, full, fp32, split_bf16m, full_bf16m, split_8bit, full_8bit, adagrad, "
          "adagrad_full, lion, lion_full, sgd, sgd_full");
    fails(*state, "bench optim --layout split,", "unknown layout \"\"");
    fails(*state, "bench optim --params 4K,many", "\"many\" is not a size");
    fails(*state, "bench optim --params 4K,", "\"\" is not a size");
    fails(*state, "bench optim --params 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "more than 16 sizes");
    fails(*state, "bench update --params 4K,64K", "takes one number of parameters");
    fails(*state, "bench link --layout split", "bench link does not take --layout");
}

/* --- link --- */

static void link_goes_both_ways(void **state)
{
    static const char *const names[] = {"upload", "download", "both"};
    struct rows r;

    run_rows(*state, &r, "bench link --bytes 100001 --repeats 2 --json");
    assert_int_equal(r.count, 3);
    for (uint32_t i = 0; i < r.count; i++) {
        assert_string_equal(text(&r, i, "name"), names[i]);
        assert_string_equal(text(&r, i, "variant"), "cpu");
        assert_true(number(&r, i, "bytes") == (i == 2 ? 200002 : 100001));
        assert_true(number(&r, i, "roof_gb_per_s") > 0);
        assert_true(number(&r, i, "seconds_median") >= number(&r, i, "seconds"));
    }
    free_rows(&r);
}

/* --- update --- */

/* The bound is the largest of the roofs, each of which has a row of its own; bound_by names it. */
static void check_update(const struct rows *r, const char *variant, uint32_t roofs)
{
    double most = 0;
    const char *binds = "";

    assert_int_equal(r->count, 1 + roofs);
    assert_string_equal(text(r, 0, "name"), "update");
    assert_string_equal(text(r, 0, "variant"), variant);
    for (uint32_t i = 1; i < r->count; i++) {
        assert_string_equal(text(r, i, "name"), "roof");
        assert_true(isnan(number(r, i, "ratio")));
        if (number(r, i, "seconds") > most) {
            most = number(r, i, "seconds");
            binds = text(r, i, "variant");
        }
    }
    assert_string_equal(text(r, 0, "bound_by"), binds);
    assert_close(number(r, 0, "bound_seconds"), most);
    assert_close(number(r, 0, "ratio"), most / number(r, 0, "seconds"));
    assert_true(number(r, 0, "seconds_least") <= number(r, 0, "seconds"));
    assert_true(number(r, 0, "params") >= 300000);
}

static void update_in_memory_moves_nothing_on_disk(void **state)
{
    struct rows r;

    run_rows(*state, &r, "bench update --params 300000 --repeats 3 --json");
    check_update(&r, "memory", 2);
    assert_true(number(&r, 0, "read_bytes") == 0 && number(&r, 0, "written_bytes") == 0);
    assert_true(number(&r, 0, "bytes") == number(&r, 0, "params") * 26);
    assert_true(number(&r, 0, "repeats") == 3);
    free_rows(&r);
}

/* 10 bytes per parameter are written, in whole pages of each chunk; what backward read ahead is not read again. */
static void check_traffic(const struct rows *r)
{
    const double state = number(r, 0, "params") * 10, written = number(r, 0, "written_bytes"), read = number(r, 0, "read_bytes");

    assert_true(written >= state && written < 1.1 * state);
    assert_true(read > state / 2 && read <= written);
    assert_true(number(r, 0, "bytes") == read + written);
}

static void update_on_disk_leaves_nothing_there(void **state)
{
    const struct workplace *w = *state;
    struct rows r;

    run_rows(w, &r, "bench update --params 300000 --repeats 2 --nvme {w}/nvme --isa scalar --threads 1 --json");
    check_update(&r, "nvme", 5);
    check_traffic(&r);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    free_rows(&r);
}

/* 16 and 12 bytes per parameter each way, of a whole number of blocks. */
static void update_moves_state_as_others_do(void **state)
{
    static const struct {
        const char *name;
        double width;
    } likes[] = {{"zero-infinity", 16}, {"mlp-offload", 12}};
    struct rows r;

    run_rows(*state, &r,
             "bench update --params 300000 --repeats 2 --nvme {w}/nvme --like zero-infinity --like mlp-offload --json");
    for (uint32_t i = 0; i < 2; i++) {
        const double blocks = number(&r, 1 + i, "read_bytes") / (likes[i].width * 4096), params = number(&r, 0, "params");

        assert_string_equal(text(&r, 1 + i, "name"), "like");
        assert_string_equal(text(&r, 1 + i, "variant"), likes[i].name);
        assert_true(number(&r, 1 + i, "read_bytes") == number(&r, 1 + i, "written_bytes"));
        assert_true(blocks == floor(blocks) && blocks * 4096 >= params && (blocks - 1) * 4096 < params);
        assert_true(number(&r, 1 + i, "seconds") > 0);
    }
    free_rows(&r);
    assert_int_equal(workplace_entries(*state, "nvme"), 0);
    fails(*state, "bench update --params 4K --like zero-infinity", "--nvme");
    fails(*state, "bench update --params 4K --nvme {w}/nvme --like deepspeed", "zero-infinity or mlp-offload");
    fails(*state, "bench optim --like mlp-offload", "does not take --like");
}

static void update_takes_a_method(void **state)
{
    struct rows r;

    run_rows(*state, &r, "bench update --params 300000 --repeats 1 --nvme {w}/nvme --io-method threads --json");
    check_update(&r, "nvme", 5);
    check_traffic(&r);
    free_rows(&r);
}

static void one_parameter_is_enough(void **state)
{
    struct program p;

    workplace_run_ok(*state, &p, "bench update --params 1 --repeats 1");
    program_free(&p);
    workplace_run_ok(*state, &p, "bench optim --params 1 --repeats 1 --layout split_8bit");
    program_free(&p);
    workplace_run_ok(*state, &p, "bench link --bytes 1 --repeats 1");
    program_free(&p);
}

/* --- step --- */

#define STEP     "bench step --model nano --seq-len 32 "
#define REHEARSE "--machine tests/machines/two-cores.json "
#define ON_NVME  "--set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme {w}/nvme "

static const char *const step_keys[] = {"predicted_ms", "bound_ms", "step/bound", "hardware_ms", "stall_ms",
                                        "upload_mb",    "down_mb",  "read_mb",    "write_mb",    "bound_by"};
#define STEP_KEYS (sizeof(step_keys) / sizeof(step_keys[0]))

/* Milliseconds are the row's seconds, the ratio is that of bound and step, and only a run can stall. */
static void check_step(const struct rows *r, uint32_t i, const char *variant, bool ran)
{
    const double ms = number(r, i, "seconds") * 1e3;
    const st_json *n = st_json_first(r->row[i]);

    for (size_t k = 0; k < COMMON_KEYS; k++)
        n = st_json_next(n);
    for (size_t k = 0; k < STEP_KEYS; k++, n = st_json_next(n)) {
        assert_non_null(n);
        assert_string_equal(st_json_name(n), step_keys[k]);
        if (k + 1 < STEP_KEYS && (ran || strcmp(step_keys[k], "stall_ms") != 0))
            assert_true(isfinite(number(r, i, step_keys[k])) && number(r, i, step_keys[k]) >= 0);
    }
    assert_null(n);
    assert_string_equal(text(r, i, "name"), ran ? "step" : "step (predicted)");
    assert_string_equal(text(r, i, "variant"), variant);
    assert_true(text(r, i, "bound_by")[0] != '\0');
    assert_close(number(r, i, "step/bound"), ms / number(r, i, "bound_ms"));
    assert_close(number(r, i, "ratio"), number(r, i, "bound_ms") / ms);
    assert_true(number(r, i, "bound_ms") >= number(r, i, "hardware_ms"));
    assert_int_equal(isnan(number(r, i, "stall_ms")), !ran);
    if (ran)
        return;
    assert_close(number(r, i, "predicted_ms"), ms);
    assert_true(number(r, i, "ratio") <= 1 + 1e-9); /* with the rates it predicts from, no schedule beats its bound */
}

static void check_steps(const struct rows *r, const char *const *variants, uint32_t count, bool ran)
{
    assert_int_equal(r->count, count);
    for (uint32_t i = 0; i < count; i++)
        check_step(r, i, variants[i], ran);
}

static void same_bytes(const struct rows *a, const struct rows *b, uint32_t i)
{
    for (const char *const *key = step_keys + 5; key < step_keys + 9; key++)
        assert_true(number(a, i, *key) == number(b, i, *key));
}

/* The configuration's own first, then every other update in every order. */
static void simulated_steps_have_a_row_per_schedule(void **state)
{
    static const char *const all[] = {"in_backward vertical", "in_backward horizontal", "gated vertical",
                                      "gated horizontal",     "serial vertical",        "serial horizontal"};
    static const char *const clipped[] = {"gated", "serial"};
    const struct workplace *w = *state;
    struct rows r;

    run_rows(w, &r,
             STEP REHEARSE ON_NVME "--simulate --json --grad-accum 2 --set gradient_clipping=0 "
                                   "--set bf16.check_grad_overflow=false");
    check_steps(&r, all, 6, false);
    for (uint32_t i = 0; i < 6; i++)
        assert_true(number(&r, i, "read_mb") > 0 && number(&r, i, "read_mb") == number(&r, i, "write_mb"));
    assert_true(number(&r, 1, "upload_mb") >= number(&r, 0, "upload_mb"));
    free_rows(&r);
    run_rows(w, &r, STEP REHEARSE "--simulate --json");
    check_steps(&r, clipped, 2, false);
    free_rows(&r);
    run_rows(w, &r, STEP REHEARSE "--simulate --json --only --set strata.update=serial");
    check_steps(&r, clipped + 1, 1, false);
    free_rows(&r);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

/* A rehearsed step moves to the byte what the simulated one would. */
static void paced_steps_run_and_leave_nothing(void **state)
{
    static const char *const variants[] = {"gated", "serial"};
    const struct workplace *w = *state;
    struct rows simulated, ran;

    run_rows(w, &simulated, STEP REHEARSE ON_NVME "--simulate --json");
    run_rows(w, &ran, STEP REHEARSE ON_NVME "--device paced --steps 1 --json");
    check_steps(&ran, variants, 2, true);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(number(&ran, i, "read_mb") > 0);
        same_bytes(&simulated, &ran, i);
    }
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    free_rows(&simulated);
    free_rows(&ran);
}

static void paced_steps_take_a_load(void **state)
{
    static const char *const variants[] = {"gated"};
    struct rows r;

    run_rows(*state, &r, STEP REHEARSE ON_NVME "--device paced --load 2 --only --steps 1 --json");
    check_steps(&r, variants, 1, true);
    assert_int_equal(workplace_entries(*state, "nvme"), 0);
    free_rows(&r);
}

static void cpu_steps_run_on_this_machine(void **state)
{
    static const char *const variants[] = {"serial"};
    struct rows r;

    run_rows(*state, &r, STEP "--device cpu --only --set strata.update=serial --steps 1 --json");
    check_steps(&r, variants, 1, true);
    free_rows(&r);
}

/* --- people --- */

static uint32_t lines_of(const char *out)
{
    uint32_t count = 0;

    for (; *out != '\0'; out++)
        count += *out == '\n';
    return count;
}

/* A heading and a line per row; no progress where nobody looks. */
static void tables_have_one_heading(void **state)
{
    struct program p;

    workplace_run_ok(*state, &p, "bench update --params 64K --repeats 1");
    assert_int_equal(lines_of(p.out), 1 + 1 + 2);
    assert_true(strncmp(p.out, "name ", 5) == 0);
    assert_non_null(strstr(p.out, " bound_by\nupdate "));
    assert_non_null(strstr(p.out, "\nroof            memory "));
    assert_string_equal(p.err, "");
    program_free(&p);
    workplace_run_ok(*state, &p, "bench optim --params 4K --repeats 1 --layout fp32 --isa scalar --threads 1");
    assert_int_equal(lines_of(p.out), 1 + 1 + 3); /* processor, threads and pages; heading; rows */
    assert_non_null(strstr(p.out, ": 1 thread, "));
    assert_non_null(strstr(p.out, "pages"));
    assert_non_null(strstr(p.out, " bound_by\nfp32 "));
    program_free(&p);
    workplace_run_ok(*state, &p, "bench link --bytes 4KiB --repeats 1");
    assert_int_equal(lines_of(p.out), 1 + 3);
    assert_non_null(strstr(p.out, "4.00 KiB"));
    program_free(&p);
    workplace_run_ok(*state, &p, STEP REHEARSE "--simulate");
    assert_int_equal(lines_of(p.out), 1 + 1 + 2); /* model and machine, heading, rows */
    assert_true(strncmp(p.out, "nano: ", 6) == 0);
    assert_non_null(strstr(p.out, " bound_by\nstep (predicted) gated "));
    assert_string_equal(p.err, "");
    program_free(&p);
}

static void a_full_output_is_an_error(void **state)
{
    const char *const words[] = {"bench", "link", "--bytes", "4K", "--repeats", "1", NULL};
    struct program p;

    (void)state;
    program_run(&p, words, "/dev/full");
    assert_int_equal(p.code, 4);
    assert_non_null(strstr(p.err, "cannot write to standard output"));
    program_free(&p);
}

/* --- failures --- */

static void a_failing_disk_is_an_error(void **state)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "bench update --params 300000 --nvme {w}/nvme --fault nvme.cqe:40:1:-5 --io-method uring");
    if (p.code != 2) { /* 2: no io_uring here */
        assert_int_equal(p.code, 4);
        assert_non_null(strstr(p.err, "strata: error: "));
    }
    assert_string_equal(p.out, "");
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

/* --- signals --- */

/* Wait until so many run directories, one after the other, have been there. */
static void wait_for_dirs(const struct workplace *w, uint32_t wanted)
{
    char path[128], last[64] = "";
    uint32_t seen = 0;

    assert_true(snprintf(path, sizeof(path), "%s/nvme", w->path) < (int)sizeof(path));
    while (seen < wanted) {
        DIR *dir = opendir(path);

        assert_non_null(dir);
        for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
            if (entry->d_name[0] != '.' && strcmp(entry->d_name, last) != 0) {
                assert_true(snprintf(last, sizeof(last), "%s", entry->d_name) < (int)sizeof(last));
                seen++;
            }
        closedir(dir);
        sched_yield();
    }
}

/* Signals while swap files are there: none is left, whether one asks or a second does not wait. */
static void ends_by(const struct workplace *w, const char *command, uint32_t dirs, const int signals[2], int code)
{
    struct program p;

    workplace_start_piped(w, &p, command);
    wait_for_dirs(w, dirs);
    assert_int_equal(kill(p.pid, signals[0]), 0);
    if (signals[1] != 0)
        assert_int_equal(kill(p.pid, signals[1]), 0);
    assert_int_equal(program_drain(&p), -1); /* no rows of a bench that did not end */
    program_wait(&p);
    assert_true(p.code == code || (signals[1] != 0 && p.code == 128 + signals[1]));
    if (p.code == code && signals[1] == 0)
        assert_non_null(strstr(p.err, "no swap files are left"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

static void all_signals(const struct workplace *w, const char *command, uint32_t dirs)
{
    ends_by(w, command, dirs, (const int[2]){SIGINT, 0}, 130);
    ends_by(w, command, dirs, (const int[2]){SIGTERM, 0}, 143);
    ends_by(w, command, dirs, (const int[2]){SIGINT, SIGTERM}, 130);
}

static void signals_leave_no_swap_files(void **state)
{
    all_signals(*state, "bench update --params 4M --repeats 1000 --nvme {w}/nvme", 1);
}

/* The first directories are those of the disk's probes: one before all, one before the first schedule. */
static void signals_leave_no_swap_files_of_steps(void **state)
{
    static const char command[] = STEP REHEARSE ON_NVME "--device paced --steps 1000 --json";

    all_signals(*state, command, 3);
    ends_by(*state, command, 1, (const int[2]){SIGINT, 0}, 130);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optim_has_a_row_per_layout_and_kernel),
        cmocka_unit_test(optim_takes_one_instruction_set),
        cmocka_unit_test(optim_takes_layouts_and_sizes),
        cmocka_unit_test(optim_has_small_tensors),
        cmocka_unit_test(what_a_bench_does_not_take_is_said),
        cmocka_unit_test(link_goes_both_ways),
        cmocka_unit_test(update_in_memory_moves_nothing_on_disk),
        cmocka_unit_test(update_on_disk_leaves_nothing_there),
        cmocka_unit_test(update_moves_state_as_others_do),
        cmocka_unit_test(update_takes_a_method),
        cmocka_unit_test(one_parameter_is_enough),
        cmocka_unit_test(simulated_steps_have_a_row_per_schedule),
        cmocka_unit_test(paced_steps_run_and_leave_nothing),
        cmocka_unit_test(paced_steps_take_a_load),
        cmocka_unit_test(cpu_steps_run_on_this_machine),
        cmocka_unit_test(tables_have_one_heading),
        cmocka_unit_test(a_full_output_is_an_error),
        cmocka_unit_test(a_failing_disk_is_an_error),
        cmocka_unit_test(signals_leave_no_swap_files),
        cmocka_unit_test(signals_leave_no_swap_files_of_steps),
    };

    return cmocka_run_group_tests(tests, workplace_setup, workplace_teardown);
}
