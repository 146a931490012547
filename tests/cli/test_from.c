/* tests/cli/test_from.c - the commands of docs/from.md, run as they stand there, on files of the names that it uses; a launcher's
 * commands as so many processes with its variables.  And its least sizes of a device are what strata plan says. */
#include "tests/cli/program.h"
#include "tests/cli/ranks.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMAND_MAX    1024
#define COMMANDS_LEAST 18u
#define SIZES          6u

static char *page;

/* --- a directory with what the page names --- */

static const char ds_json[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 2}}";
static const char acc_yaml[] = "compute_environment: LOCAL_MACHINE\n"
                               "distributed_type: DEEPSPEED\n"
                               "deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0, gradient_accumulation_steps: 2}\n"
                               "mixed_precision: bf16\n"
                               "num_processes: 2\n";
static const char sft_yaml[] = "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\n"
                               "stage: sft\n"
                               "do_train: true\n"
                               "finetuning_type: lora\n"
                               "lora_target: all\n"
                               "dataset: talks\n"
                               "dataset_dir: .\n"
                               "template: qwen\n"
                               "cutoff_len: 64\n"
                               "output_dir: adapter\n"
                               "overwrite_output_dir: true\n"
                               "per_device_train_batch_size: 1\n"
                               "gradient_accumulation_steps: 2\n"
                               "learning_rate: 1.0e-4\n"
                               "num_train_epochs: 1.0\n"
                               "bf16: true\n";
static const char args_yaml[] = "load_from: Qwen/Qwen2.5-0.5B-Instruct\n"
                                "total_step: 2\n"
                                "accumulative_counts: 2\n"
                                "train_dataloader: {batch_size: 1}\n"
                                "pack_max_length: 64\n";
static const char trl_yaml[] = "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\n"
                               "dataset_name: talks.jsonl\n"
                               "max_length: 64\n"
                               "use_peft: true\n"
                               "lora_r: 4\n"
                               "num_train_epochs: 1\n"
                               "per_device_train_batch_size: 4\n"
                               "output_dir: of_trl\n";
static const char info_json[] =
    "{\"talks\": {\"file_name\": \"talks.jsonl\", \"formatting\": \"sharegpt\", \"columns\": {\"messages\": "
    "\"messages\"}, \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", \"user_tag\": "
    "\"user\", \"assistant_tag\": \"assistant\"}}}";
static const char lora_json[] = "{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": \"all-linear\"}";

static void put(const struct workplace *w, const char *name, const char *text)
{
    workplace_write(w, name, text, strlen(text));
}

static void write_talks(const struct workplace *w)
{
    char rows[2048];
    size_t fill = 0;

    for (int i = 0; i < 8; i++)
        fill += (size_t)snprintf(rows + fill, sizeof(rows) - fill,
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"twice %d?\"}, {\"role\": \"assistant\", "
                                 "\"content\": \"%d\"}]}\n",
                                 i, 2 * i);
    workplace_write(w, "talks.jsonl", rows, fill);
    workplace_write(w, "held.jsonl", rows, fill / 2);
}

/* As the Hub's own programs leave a model: a name, a revision, a directory behind a link. */
static void make_cache(const struct workplace *w, const char *root)
{
    static const char *const dirs[] = {"hub", "hub/models--Qwen--Qwen2.5-0.5B-Instruct",
                                       "hub/models--Qwen--Qwen2.5-0.5B-Instruct/refs",
                                       "hub/models--Qwen--Qwen2.5-0.5B-Instruct/snapshots"};
    char text[256], *link;

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        workplace_make_dir(w, dirs[i]);
    put(w, "hub/models--Qwen--Qwen2.5-0.5B-Instruct/refs/main", "abc");
    link = workplace_expand(w, "{w}/hub/models--Qwen--Qwen2.5-0.5B-Instruct/snapshots/abc");
    snprintf(text, sizeof(text), "%s/tests/golden/chat/qwen", root);
    assert_int_equal(symlink(text, link), 0);
    free(link);
}

static int setup(void **state)
{
    char root[200], text[256];
    const struct workplace *w;

    assert_int_equal(workplace_setup(state), 0);
    w = *state;
    assert_non_null(getcwd(root, sizeof(root)));
    page = read_file("docs/from.md", NULL);
    make_cache(w, root);
    write_talks(w);
    put(w, "ds.json", ds_json);
    put(w, "acc.yaml", acc_yaml);
    put(w, "sft.yaml", sft_yaml);
    put(w, "args.yaml", args_yaml);
    put(w, "trl.yaml", trl_yaml);
    put(w, "dataset_info.json", info_json);
    put(w, "adapter_config.json", lora_json);
    snprintf(text, sizeof(text), "%s/configs", root);
    assert_int_equal(chdir(w->path), 0);
    assert_int_equal(symlink(text, "configs"), 0);
    setenv("HF_HUB_CACHE", "hub", 1);
    return 0;
}

static int teardown(void **state)
{
    free(page);
    return workplace_teardown(state);
}

/* --- commands --- */

/* What starts a command that is not strata's own. */
struct launcher {
    const char *text;
    const char *variables[3][2]; /* what it says beside torch's variables */
};

static const struct launcher launchers[] = {
    {.text = "torchrun --no-python --nproc_per_node 2 "},
    {.text = "deepspeed --no_python --num_gpus 2 "},
    {.text = "accelerate launch --config_file acc.yaml --no_python ",
     .variables = {{"ACCELERATE_USE_DEEPSPEED", "true"},
                   {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"},
                   {"ACCELERATE_MIXED_PRECISION", "bf16"}}},
};

static const struct launcher *launcher_of(const char *command)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++)
        if (strncmp(command, launchers[i].text, strlen(launchers[i].text)) == 0)
            return &launchers[i];
    return NULL;
}

static void replace(char text[COMMAND_MAX], const char *what, const char *by)
{
    char *at = strstr(text, what), rest[COMMAND_MAX];

    if (at == NULL)
        return;
    snprintf(rest, sizeof(rest), "%s", at + strlen(what));
    assert_true(snprintf(at, COMMAND_MAX - (size_t)(at - text), "%s%s", by, rest) < COMMAND_MAX - (int)(at - text));
}

/* What RUN stands for, as the page says. */
static void run_words(char words[COMMAND_MAX])
{
    const char *at = strstr(page, "\n    RUN = ");

    assert_non_null(at);
    at += strlen("\n    RUN = ");
    snprintf(words, COMMAND_MAX, "%.*s", (int)strcspn(at, "\n"), at);
}

/* The command that ranks run, of strata launch. */
static const char *command_of_ranks(const char *command)
{
    static const char launch[] = "launch -n 2 ";

    return strncmp(command, launch, strlen(launch)) == 0 ? command + strlen(launch) : command;
}

/* The words behind "strata ", and what makes a run short and the same each time. */
static void complete(char out[COMMAND_MAX], const char *command)
{
    char words[COMMAND_MAX];
    const char *run;

    run_words(words);
    snprintf(out, COMMAND_MAX, "%s", command);
    replace(out, "/mnt/nvme", "nvme");
    replace(out, "RUN", words);
    run = command_of_ranks(out);
    if (strncmp(run, "train ", 6) == 0)
        strcat(out, " --overwrite --threads 1 --quiet --machine machine.json");
    if (strncmp(run, "train args.yaml ", 16) == 0)
        strcat(out, " --out tuned");
    if (strncmp(out, "tune ", 5) == 0)
        strcat(out, " --seconds 0.05");
}

static unsigned run_ranks(const struct workplace *w, const struct launcher *launcher, const char *command)
{
    struct ranks ranks;
    unsigned faults = 0;

    for (size_t i = 0; i < 3 && launcher->variables[i][0] != NULL; i++)
        setenv(launcher->variables[i][0], launcher->variables[i][1], 1);
    ranks_run(w, &ranks, 2, command, "");
    for (size_t i = 0; i < 3 && launcher->variables[i][0] != NULL; i++)
        unsetenv(launcher->variables[i][0]);
    for (uint32_t i = 0; i < ranks.count; i++)
        if (ranks.programs[i].code != 0 && ++faults > 0)
            fprintf(stderr, "docs/from.md: strata %s: rank %u: exit code %d: %s\n", command, i, ranks.programs[i].code,
                    ranks.programs[i].err);
    ranks_free(&ranks);
    return faults;
}

static unsigned run_one(const struct workplace *w, const char *command)
{
    struct program p;
    unsigned faults = 0;

    workplace_run(w, &p, command);
    if (p.code != 0 && ++faults > 0)
        fprintf(stderr, "docs/from.md: strata %s: exit code %d: %s\n", command, p.code, p.err);
    program_free(&p);
    return faults;
}

/* A command in backquotes; others are words. */
static bool run_command(const struct workplace *w, const char *text, unsigned *faults)
{
    const struct launcher *launcher = launcher_of(text);
    char command[COMMAND_MAX];

    if (launcher != NULL)
        text += strlen(launcher->text);
    if (strncmp(text, "strata ", 7) != 0)
        return false;
    complete(command, text + 7);
    if (strncmp(command_of_ranks(command), "train ", 6) == 0)
        workplace_remove(w, "tuned");
    *faults += launcher != NULL ? run_ranks(w, launcher, command) : run_one(w, command);
    return true;
}

/* The right cell of a row. */
static unsigned run_row(const struct workplace *w, char *line, unsigned *faults)
{
    char *cell = strstr(line, " | ");
    unsigned commands = 0;

    assert_non_null(cell);
    for (char *text; (text = strchr(cell, '`')) != NULL;) {
        cell = strchr(text + 1, '`');
        assert_non_null(cell);
        *cell++ = '\0';
        commands += run_command(w, text + 1, faults);
    }
    return commands;
}

TEST(its_commands_run)
{
    const char *at = strstr(page, "\n## Commands\n"), *end;
    unsigned commands = 0, faults = 0;
    char line[COMMAND_MAX];

    assert_non_null(at);
    end = strstr(at + 1, "\n## ");
    for (at = strstr(at, "\n|---|---|\n") + strlen("\n|---|---|\n"); at < end; at += strcspn(at, "\n") + 1) {
        snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
        if (line[0] == '|')
            commands += run_row(*state, line, &faults);
    }
    printf("%u commands\n", commands);
    assert_true(commands >= COMMANDS_LEAST);
    assert_int_equal(faults, 0);
}

/* --- what a stage costs --- */

TEST(its_sizes_are_the_plans)
{
    static const struct {
        const char *row, *stage, *more;
    } rows[SIZES] = {
        {"| one GPU, ", "stage=0", ""},
        {"| ZeRO-1: ", "stage=1", ""},
        {"| ZeRO-2: ", "stage=2", ""},
        {"| ZeRO-3: ", "stage=3", ""},
        {"| ZeRO-3, `offload_param` cpu ", "stage=3", " --set zero_optimization.offload_param.device=cpu"},
        {"| ZeRO-3, both on cpu ", "stage=3",
         " --set zero_optimization.offload_param.device=cpu --set zero_optimization.offload_optimizer.device=cpu"},
    };
    const char *plan = strstr(page, "\n    PLAN = strata "), *at, *least;
    char command[COMMAND_MAX], size[32];
    struct program p;

    assert_non_null(plan);
    plan += strlen("\n    PLAN = strata ");
    for (size_t i = 0; i < SIZES; i++) {
        /* what does not fit is not searched for */
        snprintf(command, sizeof(command), "%.*s%s --device-memory 1MiB", (int)strcspn(plan, "\n"), plan, rows[i].more);
        replace(command, "stage=N", rows[i].stage);
        workplace_run(*state, &p, command);
        least = strstr(p.out, "needed at least");
        assert_non_null(least);
        at = strstr(page, rows[i].row);
        assert_non_null(at);
        at += strcspn(at, "\n") - strlen(" |");
        while (at[-1] != '|')
            at--;
        snprintf(size, sizeof(size), "%.*s", (int)strcspn(at + 1, "|") - 1, at + 1);
        least += strcspn(least, "0123456789");
        if (strncmp(least, size, strlen(size)) != 0)
            fail_msg("docs/from.md: %s has %s; strata plan says %.10s", rows[i].row, size, least);
        program_free(&p);
    }
}

TEST_GROUP(setup, teardown);
