/* tests/cli/program.h - runs the strata executable and keeps what it printed. */
#ifndef TESTS_CLI_PROGRAM_H
#define TESTS_CLI_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define WORDS_MAX 128

struct program {
    pid_t pid;
    int out_fd, err_fd; /* in memory; out_fd is a pipe's read end after program_start_piped */
    int code;           /* exit code, or 128 + the signal that killed it */
    char *out, *err;    /* NUL-terminated; owned */
};

/** Cut a command line at spaces; 'single quotes' keep them.  Words point into `line`, which is changed.  A last word ">FILE"
 *  is not returned in words but in *redirect (else NULL).  Returns the number of words. */
int program_split(char *line, const char *words[WORDS_MAX], const char **redirect);

/** Start strata with these words (ended by NULL).  out_path: NULL, or a file that stands for standard output, or "&-": that is
 * closed. */
void program_start(struct program *p, const char *const *words, const char *out_path);
/** The same, to its end. */
void program_run(struct program *p, const char *const *words, const char *out_path);
/** Start it with standard output on a pipe. */
void program_start_piped(struct program *p, const char *const *words);
/** Start it with standard output there, and standard error, too, or in memory (-1). */
void program_start_on(struct program *p, const char *const *words, int out_fd, int err_fd);
/** Start it with standard input and output there, and standard error in memory. */
void program_start_in(struct program *p, const char *const *words, int in_fd, int out_fd);
/** Run it with this standard input, to its end. */
void program_run_in(struct program *p, const char *const *words, int in_fd);
/** Read the pipe until this text has come; what follows stays unread.  Fails the test at the pipe's end. */
void program_wait_for(const struct program *p, const char *wanted);
/** Read the pipe to its end, so that the program does not block on it; returns the last byte, -1 if none came. */
int program_drain(const struct program *p);
/** Fill the pipe, so that the program's next write finds no room. */
void program_fill(const struct program *p);
/** Wait, and fill code and err.  A program that crashed ends the test. */
void program_wait(struct program *p);
/** The same, and fill out, of one whose output is in memory. */
void program_collect(struct program *p);
void program_free(struct program *p);

#endif
