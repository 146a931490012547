/* cli/commands/commands.h - one function per subcommand; each returns the process's exit code. */
#ifndef CLI_COMMANDS_COMMANDS_H
#define CLI_COMMANDS_COMMANDS_H

#include "cli/options/args.h"

int cmd_train(const struct cli_args *args);
int cmd_plan(const struct cli_args *args);
int cmd_eval(const struct cli_args *args);
int cmd_tokens(const struct cli_args *args);
int cmd_check(const struct cli_args *args);
int cmd_info(const struct cli_args *args);
int cmd_digest(const struct cli_args *args);
int cmd_export(const struct cli_args *args);
int cmd_import(const struct cli_args *args);
int cmd_verify(const struct cli_args *args);
int cmd_generate(const struct cli_args *args);
int cmd_bench(const struct cli_args *args);
int cmd_bench_step(const struct cli_args *args);
int cmd_bench_io(const struct cli_args *args);
int cmd_tune(const struct cli_args *args);
int cmd_launch(const struct cli_args *args);

/** The command of this name; 0: there is none. */
enum cli_command cli_command_named(const char *name);

/** tokens: write them, while progress and documents are shown. */
struct strata_tokens;
strata_status cli_tokens_write(struct strata_tokens **tokens, const struct cli_args *args);

/** Begins the sentence of every command whose standard output cannot be written. */
#define CLI_STDOUT_FAILS "cannot write to standard output"

/** Print "strata: error: " and this thread's sentence to standard error; returns the exit code of `st`.  A pipe that the reader has
 *  closed, as head does, is no news to anybody: only the exit code says it. */
int cli_fail(strata_status st);

#endif
