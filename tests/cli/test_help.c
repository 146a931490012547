/* tests/cli/test_help.c - --help teaches and hides what is not for people; --version; the arguments' own corner cases. */
#include "cli/options/args.h"
#include "strata/types.h"
#include "tests/cli/program.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const commands[] = {"train",  "plan",   "eval",   "generate", "tokens", "info", "check",
                                       "digest", "verify", "export", "import",   "bench",  "tune", "launch"};
#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

/* Runs "strata A B"; the caller frees. */
static void run2(struct program *p, const char *a, const char *b)
{
    const char *const words[] = {a, b, NULL};

    program_run(p, words, NULL);
}

TEST(version_is_the_headers)
{
    static const char *const spellings[] = {"--version", "-V"};
    struct program p;

    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        run2(&p, spellings[i], NULL);
        assert_int_equal(p.code, 0);
        assert_string_equal(p.out, "strata " STRATA_VERSION_STRING "\n");
        program_free(&p);
    }
}

TEST(overview_names_every_command)
{
    struct program p;

    run2(&p, "--help", NULL);
    assert_int_equal(p.code, 0);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        assert_non_null(strstr(p.out, commands[i]));
    program_free(&p);
}

/* The list that an unknown one brings is in the help, whole. */
TEST(help_lists_every_preset)
{
    static const char *const words[] = {"plan", "--model", "no-such-preset", NULL};
    struct program refused, help;
    char *list, *end;

    program_run(&refused, words, NULL);
    list = strstr(refused.err, "; there are ");
    assert_non_null(list);
    list += strlen("; there are ");
    end = strstr(list, ". Name other models ");
    assert_non_null(end);
    *end = '\0';
    assert_true(strlen(list) > 60);
    run2(&help, "train", "--help");
    assert_non_null(strstr(help.out, list));
    program_free(&refused);
    program_free(&help);
}

TEST(help_lists_the_variables_that_name_libraries)
{
    static const char *const names[] = {"STRATA_CUBLASLT", "STRATA_NCCL", "STRATA_MPI"};
    struct program p;

    run2(&p, "train", "--help");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_non_null(strstr(p.out, names[i]));
    program_free(&p);
}

/* Of which several processes may be one run. */
static bool takes_ranks(const char *command)
{
    return strcmp(command, "train") == 0 || strcmp(command, "eval") == 0 || strcmp(command, "generate") == 0 ||
           strcmp(command, "info") == 0;
}

TEST(every_command_teaches_with_an_example)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        char usage[64];
        struct program p;

        run2(&p, commands[i], "--help");
        assert_int_equal(p.code, 0);
        snprintf(usage, sizeof(usage), "usage: strata %s ", commands[i]);
        assert_non_null(strstr(p.out, usage));
        assert_non_null(strstr(p.out, "Example"));
        assert_non_null(strstr(p.out, "--help"));
        assert_null(strstr(p.out, "--fault"));
        assert_null(strstr(p.out, "--fake-seed"));
        assert_int_equal(strstr(p.out, "--local-rank") != NULL, takes_ranks(commands[i])); /* others only take it */
        assert_int_equal(strstr(p.out, " which of several processes this is: docs/ranks.md\n") != NULL, takes_ranks(commands[i]));
        assert_true(strcmp(commands[i], "train") != 0 || strstr(p.out, "\nPresets: nano, ") != NULL);
        assert_true(strcmp(commands[i], "check") != 0 || strstr(p.out, "\nVariables of accelerate launch") != NULL);
        assert_string_equal(p.err, "");
        program_free(&p);
    }
}

static strata_status parse(struct cli_args *args, enum cli_command command, const char *line)
{
    static char text[1024];
    char *argv[WORDS_MAX + 2] = {(char *)(uintptr_t) "strata", (char *)(uintptr_t) "command"};
    const char *words[WORDS_MAX], *redirect;
    int count;

    snprintf(text, sizeof(text), "%s", line);
    count = program_split(text, words, &redirect);
    memcpy(argv + 2, words, (size_t)count * sizeof(words[0]));
    return cli_args_parse(args, command, count + 2, argv);
}

/* An option's help is that of the command at hand. */
TEST(help_speaks_of_its_own_command)
{
    static const struct {
        const char *command, *line;
    } rows[] = {
        {"train", "  --seed N                  of a preset's weights, of new adapters and of the order of the data; default 0\n"},
        {"eval", "  --seed N                  of a preset's weights; default 0\n"},
        {"generate", "  --seed N                  of the tokens drawn and of a preset's weights; default 0\n"},
        {"info", "  --device cpu|cuda[:N]     whose workers are shown, and whose rates --measure takes; default cpu\n"},
        {"train", "  --json                    the metrics on standard output, everything else on standard error\n"},
        {"plan", "  --json                    JSON on standard output"},
        {"tokens", "  --out FILE.bin            token file to write"},
        {"info", "  --out FILE.json           with --measure: write a machine file\n"},
        {"plan", "  --model PRESET|DIR|config.json\n"},
        {"train", "  --model PRESET|DIR        a preset"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;

        run2(&p, rows[i].command, "--help");
        assert_non_null(strstr(p.out, rows[i].line));
        program_free(&p);
    }
}

TEST(values_follow_or_are_joined)
{
    struct cli_args args;

    assert_int_equal(parse(&args, CLI_CMD_TRAIN,
                           "--model=nano --data a.bin b.bin --max-steps 5 --seq=64 --deepspeed f.json --lr 1e-3 --set a.b=c=d"),
                     STRATA_OK);
    assert_string_equal(args.model, "nano");
    assert_int_equal(args.data.count, 2);
    assert_string_equal(args.data.items[1], "b.bin");
    assert_int_equal(args.max_steps, 5);
    assert_int_equal(args.seq_len, 64);
    assert_string_equal(args.config_file, "f.json");
    assert_int_equal(args.overrides.count, 2);
    assert_string_equal(args.overrides.items[0], "optimizer.params.lr=1e-3");
    assert_string_equal(args.overrides.items[1], "a.b=c=d");
    cli_args_fini(&args);
}

TEST(overrides_keep_the_order_of_the_line)
{
    struct cli_args args;

    assert_int_equal(
        parse(&args, CLI_CMD_PLAN, "--model nano --micro-batch 4 --set x=1 --device-memory 1GiB --nvme d1 --nvme d2 d3"),
        STRATA_OK);
    assert_int_equal(args.overrides.count, 4);
    assert_string_equal(args.overrides.items[0], "train_micro_batch_size_per_gpu=4");
    assert_string_equal(args.overrides.items[1], "x=1");
    assert_string_equal(args.overrides.items[2], "strata.device_memory=1GiB");
    assert_string_equal(args.overrides.items[3], "strata.nvme=d1,d2,d3");
    cli_args_fini(&args);
}

TEST(launchers_append_the_local_rank)
{
    struct cli_args args;

    assert_int_equal(parse(&args, CLI_CMD_TRAIN, "--model nano --data a --steps 1 --local_rank=3 --local-rank 0"), STRATA_OK);
    assert_int_equal(args.positional.count, 0);
    assert_int_equal(args.local_rank, 0);
    assert_true(args.rank == CLI_NOT_GIVEN && args.world_size == CLI_NOT_GIVEN);
    cli_args_fini(&args);
    assert_int_equal(parse(&args, CLI_CMD_CHECK, "config.json --local_rank=3"), STRATA_OK);
    assert_int_equal(args.local_rank, 3);
    cli_args_fini(&args);
}

/* Names that users' fingers know, for every command that reads a configuration. */
TEST(aliases_are_the_same_option)
{
    static const struct {
        const char *line, *same;
    } rows[] = {
        {"--config f.json --max-steps 5 --seq-len 64", "--deepspeed f.json --steps 5 --seq 64"},
        {"--config f.json --max-steps 5 --seq-len 64", "--deepspeed_config=f.json --steps=5 --seq=64 --local_rank=0"},
        {"--config f.json --max-steps 5 --seq-len 64",
         "--local-rank 1 --config=f.json --max-steps=5 --seq-len=64 --local_rank 2"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct cli_args args, same;
        char line[256];

        snprintf(line, sizeof(line), "--model nano --data a %s", rows[i].line);
        assert_int_equal(parse(&args, CLI_CMD_TRAIN, line), STRATA_OK);
        assert_string_equal(args.config_file, "f.json");
        snprintf(line, sizeof(line), "--model nano --data a %s", rows[i].same);
        assert_int_equal(parse(&same, CLI_CMD_TRAIN, line), STRATA_OK);
        assert_string_equal(same.config_file, "f.json");
        assert_int_equal(same.max_steps, args.max_steps);
        assert_int_equal(same.seq_len, args.seq_len);
        assert_int_equal(same.positional.count, 0);
        cli_args_fini(&args);
        cli_args_fini(&same);
    }
}

/* Names of Trainer's arguments whose meaning is that of an option. */
TEST(names_of_trainer_mean_the_same)
{
    static const struct {
        const char *theirs, *ours;
    } rows[] = {
        {"--learning_rate 1e-4", "--lr 1e-4"},
        {"--per_device_train_batch_size=4", "--micro-batch 4"},
        {"--gradient_accumulation_steps 8", "--grad-accum 8"},
        {"--lr_scheduler_type cosine", "--lr-scheduler cosine"},
        {"--warmup_steps 3", "--warmup-steps 3"},
        {"--warmup_ratio 0.1", "--set strata.lr_scheduler.warmup_ratio=0.1"},
        {"--weight_decay 0.1", "--set optimizer.params.weight_decay=0.1"},
        {"--max_grad_norm 1", "--set gradient_clipping=1"},
        {"--bf16", "--set bf16.enabled=true"},
        {"--fp16", "--set fp16.enabled=true"},
        {"--logging_steps 5", "--set steps_per_print=5"},
        {"--save_steps 5 --save_total_limit 3", "--save-every 5 --keep 3"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct cli_args theirs, ours;
        char line[256];

        snprintf(line, sizeof(line), "--model_name_or_path nano --data a --max_steps 1 %s", rows[i].theirs);
        assert_int_equal(parse(&theirs, CLI_CMD_TRAIN, line), STRATA_OK);
        assert_string_equal(theirs.model, "nano");
        snprintf(line, sizeof(line), "--model nano --data a --max-steps 1 %s", rows[i].ours);
        assert_int_equal(parse(&ours, CLI_CMD_TRAIN, line), STRATA_OK);
        assert_int_equal(theirs.overrides.count, ours.overrides.count);
        assert_true(ours.overrides.count > 0);
        for (uint32_t k = 0; k < ours.overrides.count; k++)
            assert_string_equal(theirs.overrides.items[k], ours.overrides.items[k]);
        cli_args_fini(&theirs);
        cli_args_fini(&ours);
    }
}

/* Those whose meaning is another's name what is here. */
TEST(other_names_of_trainer_are_told)
{
    static const struct {
        const char *theirs, *ours;
    } rows[] = {
        {"--output_dir out", "--out DIR, checkpoints to --save DIR"},
        {"--resume_from_checkpoint true", "--resume auto"},
        {"--eval_strategy steps", "--eval-every N"},
        {"--max_seq_length 64", "--seq-len N"},
        {"--optim adamw_torch", "--set optimizer.type=NAME"},
        {"--lora_r 8", "--lora FILE.json"},
        {"--gradient_checkpointing", "leave it out"},
    };
    struct cli_args args;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char line[256], name[64];

        snprintf(line, sizeof(line), "--model nano --data a --max-steps 1 %s", rows[i].theirs);
        assert_int_equal(parse(&args, CLI_CMD_TRAIN, line), STRATA_E_INVAL);
        snprintf(name, sizeof(name), "%.*s is no option here: ", (int)strcspn(rows[i].theirs, " "), rows[i].theirs);
        assert_non_null(strstr(strata_last_error(), name));
        assert_non_null(strstr(strata_last_error(), rows[i].ours));
        cli_args_fini(&args);
    }
}

/* Short options are paths of the configuration. */
TEST(short_options_are_overrides)
{
    static const char *const want[] = {"optimizer.params.lr=1e-4", "train_micro_batch_size_per_gpu=4",
                                       "gradient_accumulation_steps=8", "scheduler.params.warmup_num_steps=100"};
    static const enum cli_command takers[] = {CLI_CMD_TRAIN, CLI_CMD_PLAN, CLI_CMD_CHECK};

    for (size_t c = 0; c < sizeof(takers) / sizeof(takers[0]); c++) {
        struct cli_args args;

        assert_int_equal(
            parse(&args, takers[c],
                  takers[c] == CLI_CMD_CHECK
                      ? "f.json --lr 1e-4 --micro-batch 4 --grad-accum 8 --warmup-steps 100"
                      : "--model nano --data a --steps 1 --lr 1e-4 --micro-batch=4 --grad-accum 8 --warmup-steps=100"),
            STRATA_OK);
        assert_int_equal(args.overrides.count, sizeof(want) / sizeof(want[0]));
        for (uint32_t i = 0; i < args.overrides.count; i++)
            assert_string_equal(args.overrides.items[i], want[i]);
        cli_args_fini(&args);
    }
}

TEST(plan_takes_a_whole_train_line)
{
    struct cli_args args;

    assert_int_equal(parse(&args, CLI_CMD_PLAN, "--model nano --data a --steps 1 --out o --metrics m --digest --eval-every 2"),
                     STRATA_OK);
    cli_args_fini(&args);
    assert_int_equal(parse(&args, CLI_CMD_EVAL, "--model nano --data a --digest"), STRATA_E_INVAL);
    cli_args_fini(&args);
}

TEST(generation_has_defaults_and_one_prompt)
{
    struct cli_args args;

    assert_int_equal(parse(&args, CLI_CMD_GENERATE, "--model nano --prompt 'a b'"), STRATA_OK);
    assert_string_equal(args.prompt, "a b");
    assert_int_equal(args.max_tokens, 0); /* what there is room for, at most 128 */
    assert_true(isnan(args.temperature) && args.top_p == 0 && args.top_k == 0 && args.repetition_penalty == 0);
    cli_args_fini(&args);
    assert_int_equal(parse(&args, CLI_CMD_GENERATE, "--model nano --prompt-tokens 1,2 --temperature 0 --top-p 0.5 --top-k 7"),
                     STRATA_OK);
    assert_true(args.temperature == 0 && args.top_p == 0.5 && args.top_k == 7);
    cli_args_fini(&args);
    assert_int_equal(parse(&args, CLI_CMD_GENERATE, "--model nano --prompt a --prompt-tokens 1"), STRATA_E_INVAL);
    cli_args_fini(&args);
    assert_int_equal(parse(&args, CLI_CMD_GENERATE, "--model nano"), STRATA_E_INVAL);
    cli_args_fini(&args);
}
