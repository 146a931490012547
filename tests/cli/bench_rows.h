/* tests/cli/bench_rows.h - runs benches of the program: their JSON rows, what they refuse, and signals while they run. */
#ifndef TESTS_CLI_BENCH_ROWS_H
#define TESTS_CLI_BENCH_ROWS_H

#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"

#include <stdint.h>

#define ROWS_MAX 128u
/* Every row begins with name, variant, bytes, seconds, gb_per_s, roof_gb_per_s and ratio. */
#define COMMON_KEYS 7u

/* The JSON rows of one run. */
struct rows {
    struct program p;
    st_json *row[ROWS_MAX];
    uint32_t count;
};

/** Run strata to success; every row is checked for what all rows have.  free_rows() afterwards. */
void run_rows(const struct workplace *w, struct rows *r, const char *command);
void free_rows(struct rows *r);

/** A value of row i, which must be there; null is NaN. */
double number(const struct rows *r, uint32_t i, const char *key);
const char *text(const struct rows *r, uint32_t i, const char *key);

void assert_close(double a, double b);

/** The command ends with 2, this sentence, and nothing on standard output. */
void fails(const struct workplace *w, const char *command, const char *sentence);

/** Signals to the command once so many run directories, one after the other, have been in nvme/: it ends with `code`, prints no
 * row and leaves no files, whether one asks or a second, where it is not 0, does not wait. */
void ends_by(const struct workplace *w, const char *command, uint32_t dirs, const int signals[2], int code);
/** Ctrl-C, SIGTERM, and one after the other. */
void all_signals(const struct workplace *w, const char *command, uint32_t dirs);

#endif
