/* tests/cli/bench_rows.c - see tests/cli/bench_rows.h. */
#include "tests/cli/bench_rows.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static const char *const common_keys[COMMON_KEYS] = {"name", "variant", "bytes", "seconds", "gb_per_s", "roof_gb_per_s", "ratio"};

double number(const struct rows *r, uint32_t i, const char *key)
{
    const st_json *n = st_json_get(r->row[i], key);

    assert_non_null(n);
    return st_json_type(n) == ST_JSON_NULL ? NAN : st_json_number(n);
}

const char *text(const struct rows *r, uint32_t i, const char *key)
{
    const st_json *n = st_json_get(r->row[i], key);

    assert_non_null(n);
    return st_json_string(n);
}

void assert_close(double a, double b)
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

void run_rows(const struct workplace *w, struct rows *r, const char *command)
{
    static const char impatient[] = "fault: machine.patience ";
    char *save = NULL, *said;

    *r = (struct rows){0};
    workplace_run_ok(w, &r->p, command);
    said = r->p.err;
    if (strncmp(said, impatient, strlen(impatient)) == 0)
        said = strchr(said, '\n') + 1;
    assert_string_equal(said, "");
    for (char *line = strtok_r(r->p.out, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
        assert_true(r->count < ROWS_MAX);
        assert_int_equal(st_json_parse(&r->row[r->count], line, strlen(line), "row"), STRATA_OK);
        check_common(r, r->count++);
    }
}

void free_rows(struct rows *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        st_json_free(r->row[i]);
    program_free(&r->p);
}

/* --- refusals and signals --- */

void fails(const struct workplace *w, const char *command, const char *sentence)
{
    struct program p;

    workplace_run(w, &p, command);
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, sentence));
    assert_string_equal(p.out, "");
    program_free(&p);
}

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
void ends_by(const struct workplace *w, const char *command, uint32_t dirs, const int signals[2], int code)
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
        assert_non_null(strstr(p.err, "nothing unfinished is left"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

void all_signals(const struct workplace *w, const char *command, uint32_t dirs)
{
    ends_by(w, command, dirs, (const int[2]){SIGINT, 0}, 130);
    ends_by(w, command, dirs, (const int[2]){SIGTERM, 0}, 143);
    ends_by(w, command, dirs, (const int[2]){SIGINT, SIGTERM}, 130);
}
