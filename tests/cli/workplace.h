/* tests/cli/workplace.h - a temporary directory with good and damaged inputs for the program. */
#ifndef TESTS_CLI_WORKPLACE_H
#define TESTS_CLI_WORKPLACE_H

#include <stdbool.h>
#include <stddef.h>

struct program; /* tests/cli/program.h */

/* good.bin good.heldout.bin (tokens), machine.json (rates, so that no run measures), slow.json (a drive as slow as compute),
 * config.json (last one written), nvme/,
 * file (not a directory), model/ (Hugging Face), and where workplace_damage() was called: bad-*.bin, model-*, pipe;
 * where mounting is allowed: full/ (1 MiB) and ro/ (read-only). */
struct workplace {
    char path[64];
    bool mounted;         /* full and ro are there */
    char not_mounted[64]; /* why not */
};

void workplace_create(struct workplace *w);
/** Damaged token files and model directories. */
void workplace_damage(const struct workplace *w);
/** File systems for full disks and read-only mounts, in this process's own mount namespace. */
void workplace_mount(struct workplace *w);
void workplace_destroy(struct workplace *w);

void workplace_write(const struct workplace *w, const char *name, const void *data, size_t bytes);
void workplace_make_dir(const struct workplace *w, const char *name);
/** Whole file as text; owned by the caller. */
char *workplace_read(const struct workplace *w, const char *name, size_t *bytes);
/** Number of entries of a directory inside, subdirectories not entered; -1 if it is not there. */
int workplace_entries(const struct workplace *w, const char *name);
bool workplace_exists(const struct workplace *w, const char *name);
void workplace_remove(const struct workplace *w, const char *name);

/** "{w}" becomes the path; owned by the caller. */
char *workplace_expand(const struct workplace *w, const char *text);

/** Run strata with this command line, expanded and cut as program_split() does, to its end. */
void workplace_run(const struct workplace *w, struct program *p, const char *command);
/** The same, and exit code 0 or the test ends with what the program said. */
void workplace_run_ok(const struct workplace *w, struct program *p, const char *command);
/** Start it; program_wait() ends it. */
void workplace_start(const struct workplace *w, struct program *p, const char *command);
/** Start it with standard output on a pipe. */
void workplace_start_piped(const struct workplace *w, struct program *p, const char *command);

/** For cmocka's groups: the state is a workplace, made and removed. */
int workplace_setup(void **state);
int workplace_teardown(void **state);

/** Run the command, which must end well, and take what it says from "weights_digest" on: both digests. */
void workplace_digests(const struct workplace *w, const char *command, char out[160]);

#endif
