/* tests/cli/test_plan_hardware.c - strata plan --gpu: the machine of the names, and nothing of this one. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVME                                                                                                                     \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 --nvme "         \
    "/nowhere/that/is "
#define PLAN  "plan --model tests/cli/two-blocks --seq-len 128 --json " NVME
#define NAMES "--gpu 4090 --ram 64GB --drive 7GB/s:2TBx2 "

static st_json *json_of(const struct program *p)
{
    st_json *root;

    assert_int_equal(st_json_parse(&root, p->out, strlen(p->out), "plan"), STRATA_OK);
    return root;
}

static void write_machine(const struct workplace *w, const char *name, const st_json *machine)
{
    char *text = json_whole(machine);

    workplace_write(w, name, text, strlen(text));
    free(text);
}

/* The object in the output is a machine file, and with it the plan is the same, with every device and directory that is not here.
 */
TEST(names_and_their_file_plan_the_same)
{
    const struct workplace *w = *state;
    struct program by_name, by_file;
    st_json *named, *filed;

    workplace_run_ok(w, &by_name, PLAN NAMES "--device cuda");
    named = json_of(&by_name);
    assert_true(json_number(st_json_get(named, "machine"), "workers") == 16);
    write_machine(w, "named.json", st_json_get(named, "machine"));
    workplace_run_ok(w, &by_file, PLAN "--machine {w}/named.json --device cuda:1");
    filed = json_of(&by_file);
    assert_true(json_number(named, "predicted_seconds") > 0);
    assert_true(json_number(named, "predicted_seconds") == json_number(filed, "predicted_seconds"));
    assert_true(json_number(named, "ops") == json_number(filed, "ops"));
    st_json_free(named);
    st_json_free(filed);
    program_free(&by_name);
    program_free(&by_file);
}

/* Where directories lie here does not say where checkpoints would there: beside the state, if it is not here. */
TEST(nothing_of_this_machine_enters)
{
    static const char *const saving[] = {PLAN NAMES "--save /nowhere/else/that/is", PLAN NAMES "--save {w}/checkpoints",
                                         PLAN "--machine tests/machines/card-24gb.json --save {w}/checkpoints"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(saving) / sizeof(saving[0]); i++) {
        struct program p;
        st_json *root;

        workplace_run_ok(w, &p, saving[i]);
        root = json_of(&p);
        assert_true(json_number(st_json_get(root, "checkpoints"), "sets") == 4);
        st_json_free(root);
        program_free(&p);
    }
}

TEST(a_drive_is_needed_where_something_lies_on_one)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "plan --model gpt2 --seq-len 128 --gpu 4090 " NVME);
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.err, "nvme"));
    program_free(&p);
}

/* A GPU whose memory no file says is one that is here. */
TEST(a_gpu_of_unknown_memory_must_be_here)
{
    static const char file[] = "{\"device_is_host\":false,\"host_bytes\":8000000000}";
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "gpu.json", file, sizeof(file) - 1);
    workplace_run(w, &p, "plan --model nano --micro-batch 1 --device cuda --machine {w}/gpu.json");
    if (p.code != 0) {
        assert_int_equal(p.code, 2);
        assert_true(strstr(p.err, "cuda") != NULL || strstr(p.err, "device_bytes") != NULL); /* with CUDA, and without */
    }
    program_free(&p);
}

/* A card without bf16 is planned for in fp16 alone; the question, which nobody has told a precision, is answered in it. */
TEST(a_card_without_bf16_trains_in_fp16)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "plan --model nano --seq-len 32 --micro-batch 1 --gpu t4");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "set fp16.enabled to true and bf16.enabled to false"));
    program_free(&p);
    workplace_run_ok(w, &p,
                     "plan --model nano --seq-len 32 --micro-batch 1 --gpu t4 --set fp16.enabled=true --set "
                     "bf16.enabled=false");
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32 --micro-batch 1 --gpu t4 --set fp16.enabled=true");
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32 --gpu t4 --batch-tokens 64 --json");
    assert_non_null(strstr(p.out, "\"fp16\":{\"enabled\":true}"));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32 --gpu t4 --batch-tokens 64");
    assert_non_null(strstr(p.out, "assumed: fp16,"));
    program_free(&p);
}

/* What such a card's attention refuses, a plan for it refuses, too. */
TEST(a_card_without_bf16_trains_no_wide_heads)
{
    static const struct {
        const char *options, *error; /* NULL: it is planned */
    } runs[] = {
        {"--gpu t4 --fp16 --micro-batch 1", "heads of at most 128 in fp16, and the model's have 256: take one of"},
        {"--gpu t4", "heads of at most 128 in fp16, and the model's have 256: take one of"},
        {"--gpu t4 --set bf16.enabled=false --micro-batch 1",
         "heads of at most 64 in fp32, and the model's have 256: take one of"},
        {"--gpu 3060 --micro-batch 1", NULL},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        struct program p;
        char command[160];

        snprintf(command, sizeof(command), "plan --model gemma-3-270m --seq-len 32 %s", runs[i].options);
        workplace_run(w, &p, command);
        assert_int_equal(p.code, runs[i].error != NULL ? 2 : 0);
        if (runs[i].error != NULL && strstr(p.err, runs[i].error) == NULL)
            fail_msg("%s: %s", runs[i].options, p.err);
        program_free(&p);
    }
}

/* Where the GPU's memory is the host's nothing is offloaded from the one to the other, nor is that proposed. */
TEST(one_memory_is_no_place_to_offload_to)
{
    static const char file[] =
        "{\"device_is_host\":false,\"unified\":true,\"device_bytes\":8000000000,\"host_bytes\":64000000000}";
    static const char *const sections[] = {"offload_optimizer", "offload_param"};
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "one.json", file, sizeof(file) - 1);
    for (size_t i = 0; i < 2; i++) {
        char command[256];

        snprintf(command, sizeof(command),
                 "plan --model nano --seq-len 32 --micro-batch 1 --machine {w}/one.json --set zero_optimization.stage=3 --set "
                 "zero_optimization.%s.device=cpu",
                 sections[i]);
        workplace_run(w, &p, command);
        assert_int_equal(p.code, 2);
        assert_non_null(strstr(p.err, sections[i]));
        assert_non_null(strstr(p.err, "the GPU's memory is the host's"));
        program_free(&p);
    }
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32 --micro-batch 1 --machine {w}/one.json");
    program_free(&p);
    workplace_run(w, &p, "plan --model llama-2-7b --seq-len 128 --micro-batch 1 --machine {w}/one.json");
    assert_int_equal(p.code, 3);
    assert_null(strstr(p.err, "=cpu"));
    program_free(&p);
}

TEST(what_was_assumed_is_said)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "plan --model gpt2 --seq-len 128 --micro-batch 1 --gpu 4090");
    assert_non_null(strstr(p.out, "GeForce RTX 4090: 22.0 GiB of 24 GB"));
    assert_non_null(strstr(p.out, "64 GB of DDR5-5600, 2 channels (all assumed"));
    assert_non_null(strstr(p.out, "no drive (--drive 7GB/s:2TB adds one)"));
    program_free(&p);
    workplace_run_ok(
        w, &p, "plan --model gpt2 --seq-len 128 --micro-batch 1 --gpu 4090 --ram 32GB:4xDDR4-3200 --drive gen3:1TB sata:2TB");
    assert_null(strstr(p.out, "channels ("));
    assert_non_null(strstr(p.out, "1 drive of 1 TB, 3.4 GB/s; 1 drive of 2 TB, 0.55 GB/s"));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --seq-len 32 --micro-batch 1 --gpu 4090 --drive 7GB/s:2TB --drive 3GB/s:2TB");
    assert_non_null(strstr(p.out, "1 drive of 2 TB, 7 GB/s; 1 drive of 2 TB, 3 GB/s"));
    program_free(&p);
}

/* The shapes of a published model are known without its files. */
TEST(a_published_name_is_enough)
{
    static const char *const names[] = {"meta-llama/Llama-3.2-1B", "Llama-3.2-1B-Instruct", "llama-1b"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < 3; i++) {
        char command[256];
        struct program p;

        snprintf(command, sizeof(command), "plan --model %s --seq-len 128 --micro-batch 1 --gpu h100", names[i]);
        workplace_run_ok(w, &p, command);
        assert_non_null(strstr(p.out, "llama-1b: 1.24 billion parameters"));
        assert_int_equal(strstr(p.err, "using the preset llama-1b") != NULL, i < 2);
        program_free(&p);
    }
}

/* A config.json alone plans as its directory with weights does. */
TEST(shapes_are_enough)
{
    static const char shapes[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":2,"
                                 "\"num_attention_heads\":4,\"vocab_size\":256,\"max_position_embeddings\":64}";
    static const char unsaid[] = "{\"train_micro_batch_size_per_gpu\":1}";
    const struct workplace *w = *state;
    struct program of_dir, of_file;

    workplace_run_ok(w, &of_dir, "plan --json " NVME NAMES "--model {w}/model");
    workplace_run_ok(w, &of_file, "plan --json " NVME NAMES "--model {w}/model/config.json");
    assert_non_null(strstr(of_dir.out, "\"model\":\"model\""));
    assert_string_equal(of_dir.out, of_file.out);
    program_free(&of_dir);
    program_free(&of_file);

    workplace_write(w, "shapes.json", shapes, sizeof(shapes) - 1);
    workplace_write(w, "ds.json", unsaid, sizeof(unsaid) - 1);
    workplace_run_ok(w, &of_file, "plan --gpu 4090 --model {w}/shapes.json --config {w}/ds.json");
    assert_non_null(strstr(of_file.err, "turns on neither bf16 nor fp16: using fp32"));
    assert_non_null(strstr(of_file.out, "parameters in fp32, 2 blocks"));
    program_free(&of_file);
}

TEST(the_list_names_cards_and_sources)
{
    static const char *const spellings[] = {"plan --gpu list", "plan --gpu help"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < 2; i++) {
        struct program p;

        workplace_run_ok(w, &p, spellings[i]);
        assert_non_null(strstr(p.out, "rtx-4090"));
        assert_non_null(strstr(p.out, "NVIDIA Ada GPU Architecture"));
        assert_non_null(strstr(p.out, "gen5 (13 GB/s)"));
        program_free(&p);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
