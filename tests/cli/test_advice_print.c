/* tests/cli/test_advice_print.c - the answer of strata plan --tokens: lengths, rates and wear of a run, figure by figure. */
#include "advise/advisor.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Steps of 32 x 4096 tokens that take 2 s, on a machine with drives of 1 and 3 TB. */
static struct st_advice answer_of(double seconds)
{
    static char config; /* only looked at */

    return (struct st_advice){
        .seq = 4096,
        .sequences = 32,
        .params = 8030261248,
        .model = "m",
        .machine = "box",
        .named = true,
        .hardware = {.ram_bytes = UINT64_C(64) << 30,
                     .drive_count = 2,
                     .drives = {{.read = 1e9, .bytes = 1000000000000}, {.read = 3e9, .bytes = 3000000000000}}},
        .tried = {{{STRATA_TIER_HOST, STRATA_TIER_DEVICE, STRATA_TIER_COUNT, 2}, 2, 16, seconds * 1.5, false, false, false},
                  {{STRATA_TIER_NVME, STRATA_TIER_HOST, STRATA_TIER_NVME, 3}, 8, 4, seconds, true, false, false}},
        .tried_count = 2,
        .best = 1,
        .config = &config,
    };
}

static char *text_of(const struct st_advice *a)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    st_advice_print(a, file);
    assert_int_equal(fclose(file), 0);
    return text;
}

static void must_hold(const struct st_advice *a, const char *wanted)
{
    char *text = text_of(a);

    if (strstr(text, wanted) == NULL)
        fail_msg("%s\nlacks: %s", text, wanted);
    free(text);
}

TEST(what_fits_is_told)
{
    struct st_advice a = answer_of(2);

    must_hold(&a, "m: 8.03 billion parameters; steps of 131072 tokens in sequences of 4096; evaluated on box\n");
    must_hold(&a, "\n  it fits: optimizer nvme, weights cpu, activation checkpoints nvme, micro-batch 8, accumulation 4\n");
    must_hold(&a, "\n  predicted step: 2 s, 65536 tokens a second; fastest of 2 settings that fit\n");
    a.tried_count = 1;
    a.best = 0;
    must_hold(&a, "\n  it fits: optimizer cpu, weights device, micro-batch 2, accumulation 16\n");
    must_hold(&a, "\n  predicted step: 3 s, 43691 tokens a second; the only setting that fits\n");
    a.tried[0].bounded = true;
    must_hold(&a, "\n  predicted step: at least 3 s, 43691 tokens a second at most; the only setting that fits\n    that is the "
                  "schedule's bound, since a program this long is not simulated\n");
    a.tried_count = 2;
    a.tried[0].lacks = true;
    must_hold(&a,
              " at most; the lowest bound of 2 settings that fit\n    that is the schedule's bound, since the machine lacks a "
              "rate that the simulation needs\n");
    a.tried[0].seconds = 0;
    must_hold(&a, "\n  the step is not predicted: rates of this machine are not known\n");
    a.machine[0] = '\0';
    must_hold(&a, "; evaluated on this machine\n");
}

TEST(epochs_of_data)
{
    static const struct {
        uint64_t sequences;
        double steps;
        const char *line;
    } rows[] = {
        {96, 0, "the data: 96 sequences of 4096 tokens, 3 steps an epoch\n"},
        {97, 4, "the data: 97 sequences of 4096 tokens, 4 steps an epoch; 1 epoch\n"},
        {97, 10, "the data: 97 sequences of 4096 tokens, 4 steps an epoch; 2.5 epochs\n"},
        {1, 3, "the data: 1 sequence of 4096 tokens, 1 step an epoch; 3 epochs\n"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_advice a = answer_of(2);

        a.steps = rows[i].steps;
        a.written.run_bytes = (double)NAN;
        a.data_sequences = rows[i].sequences;
        must_hold(&a, rows[i].line);
    }
}

/* Only of a machine by names it is known that nothing was measured. */
TEST(named_parts_are_not_measured)
{
    struct st_advice a = answer_of(2);
    char *text;

    must_hold(&a, "\n  predicted for the parts that are named, not measured: no GPU has run it yet\n");
    a.named = false;
    text = text_of(&a);
    assert_null(strstr(text, "no GPU has run it"));
    free(text);
}

/* Whole steps, the last of them, too. */
TEST(lengths_of_a_run)
{
    static const struct {
        double tokens, seconds;
        const char *line;
    } rows[] = {
        {131072, 2, "the run: 131 thousand tokens in 1 step: "},
        {131073, 30, "the run: 131 thousand tokens in 2 steps: "},
        {1e9, 2, "the run: 1.00 billion tokens in 7630 steps: 4.24 hours\n"},
        {131072 * 47.5, 3600, "the run: 6.23 million tokens in 48 steps: 48 hours (2 days)\n"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_advice a = answer_of(rows[i].seconds);

        a.tokens = rows[i].tokens;
        a.written.run_bytes = (double)NAN;
        must_hold(&a, rows[i].line);
    }
}

/* Of all drives together, of unlike ones as soon as the first does, to which as much is written as to a larger one of its rate;
 * of what a run may take where they are not known by their parts. */
TEST(drives_wear_out)
{
    const double endured = st_hardware_writes_endured();
    struct st_advice a = answer_of(2);
    char line[128];

    a.tokens = 1e9;
    a.written.run_bytes = 0.25 * 4e12 * endured;
    snprintf(line, sizeof(line), "\n  drives: %.0f TB written, 25 %% of what they endure\n", endured);
    must_hold(&a, line);
    a.hardware.drives[0].read = 3e9;
    must_hold(&a, " TB written, 50 % of what they endure\n");
    a.hardware.drive_count = ST_HARDWARE_DRIVES_MAX; /* as much, in as many as there may be */
    for (uint32_t i = 0; i < ST_HARDWARE_DRIVES_MAX; i++)
        a.hardware.drives[i] = (struct st_hardware_drive){.read = 1e9, .bytes = 4000000000000 / ST_HARDWARE_DRIVES_MAX};
    must_hold(&a, line);
    a.written.run_bytes = 1.5 * 4e12 * endured;
    snprintf(line, sizeof(line), " TB written, 1.5 times what they endure\n");
    must_hold(&a, line);
    a.named = false;
    a.capacity[STRATA_TIER_NVME] = 12000000000000;
    must_hold(&a, " TB written, 50 % of what they endure\n");
}

TEST(what_does_not_fit_says_what_would)
{
    struct st_advice a = answer_of(2);

    a.config = NULL;
    a.config = NULL;
    a.named = false;
    a.least[STRATA_TIER_HOST] = UINT64_C(3) << 30;
    must_hold(&a, "\n  it does not fit, whatever lies where\n"
                  "    with 3.00 GiB of host memory (3072MiB as strata.host_memory) it would, the rest as it is\n");
    a.least[STRATA_TIER_HOST] = 0;
    a.together[STRATA_TIER_DEVICE] = UINT64_C(5) << 20;
    a.together[STRATA_TIER_NVME] = UINT64_C(7) << 20;
    must_hold(&a, "\n  it does not fit, whatever lies where\n"
                  "    with 5.00 MiB of the device's memory (5MiB as strata.device_memory) and 7.00 MiB of drives (7MiB) it "
                  "would, the rest "
                  "as it is\n");
    a.least[STRATA_TIER_DEVICE] = UINT64_C(9) << 30;
    must_hold(&a, "\n    with 9.00 GiB of the device's memory (9216MiB as strata.device_memory) it would, the rest as it is\n"
                  "    with 5.00 MiB of the device's memory (5MiB as strata.device_memory) and 7.00 MiB of drives");
    a.named = true; /* with a card of 10 GiB, and no drive */
    assert_int_equal(st_hardware_parse(&a.hardware, &(struct st_hardware_choice){.gpu = "3060", .ram = "64GB"}), STRATA_OK);
    a.least[STRATA_TIER_DEVICE] = UINT64_C(10) << 30;
    must_hold(&a, "\n    with 10.0 GiB of the device's memory (10240MiB as strata.device_memory) it would, the rest as it is\n"
                  "    with 5.00 MiB of the device's memory (5MiB as strata.device_memory) and machine.drives 7GB/s:0.1TB "
                  "(7.00 MiB of it for a run) it would");
    a.least[STRATA_TIER_DEVICE] = UINT64_C(11) << 30;
    must_hold(&a, "\n    with machine.gpu rtx-4060-ti (11.0 GiB of it for a run) it would, the rest as it is\n");
    a.given[STRATA_TIER_DEVICE] = true;
    must_hold(
        &a,
        "\n    with machine.gpu rtx-4060-ti (11264MiB of it for a run as strata.device_memory) it would, the rest as it is\n");
    a.least[STRATA_TIER_DEVICE] = UINT64_C(900) << 30;
    must_hold(&a, "\n    with 900 GiB of the device's memory (no part by name has it) it would, the rest as it is\n");
    a.least[STRATA_TIER_DEVICE] = 0;
    a.changed[ST_CHANGE_RAM] = (struct st_changed){
        true, true, "128 GB", {{STRATA_TIER_HOST, STRATA_TIER_DEVICE, STRATA_TIER_COUNT, 2}, 2, 16, 1, 1, true, false, false}};
    must_hold(&a, "\n  it would also fit with one of:\n");
    must_hold(&a, "       1 s  with optimizer cpu, weights device, micro-batch 2, accumulation 16\n");
}

/* From the one that trains the most; what does not fit either is not named. */
TEST(adapters_are_told_with_the_lines_to_add)
{
    static char config[] =
        "{\n  \"bf16\": {},\n  \"zero_optimization\": {\n    \"stage\": 3\n  },\n  \"strata\": {\"lora\": {}}\n}\n";
    struct st_advice a = answer_of(2);

    a.config = NULL;
    a.config = NULL;
    a.instead[ST_METHOD_LORA_NF4] = (struct st_instead){true, a.tried[0], {UINT64_C(5) << 30, UINT64_C(3) << 30, 0}, config};
    must_hold(&a, "\n  what fits here instead of full training:\n"
                  "    adapters beside weights in nf4 (QLoRA): 5.00 GiB of the device, 3.00 GiB of host memory; 3 s a step with "
                  "optimizer cpu, weights device, micro-batch 2, accumulation 16\n"
                  "      \"zero_optimization\": {\n        \"stage\": 3\n      },\n      \"strata\": {\"lora\": {}}\n"
                  "    these lines belong in the configuration\n");
    a.instead[ST_METHOD_LORA] = a.instead[ST_METHOD_LORA_NF4];
    must_hold(&a, "\n  what fits here instead of full training:\n    adapters (LoRA): 5.00 GiB of the device, ");
}

/* Each figure under its own name, where no two are the same. */
TEST(what_does_not_fit_is_in_the_json)
{
    static const char wanted[] =
        "{\"fits\":false,\"model\":\"m\",\"parameters\":8030261248,\"machine\":\"box\",\"sequence_length\":4096,\"step_"
        "sequences\":32,\"ranks\":1,\"tokens\":1000,\"steps\":1,\"data_sequences\":null,\"named\":true,\"capacity\":{\"device\":"
        "11,\"host\":12,\"nvme\":13},\"least\":{\"device\":"
        "21,\"host\":22,\"nvme\":23},\"least_together\":{\"device\":31,\"host\":32,\"nvme\":33},\"instead\":[],\"changed\":{"
        "\"gpu\":{\"to\":"
        "\"card\",\"optimizer\":\"cpu\",\"param\":\"none\",\"stage\":2,\"activation_checkpoints\":\"auto\",\"micro_batch\":2,"
        "\"gradient_accumulation\":16,\"predicted_seconds\":3,\"simulated\":true},\"drive\":{\"to\":\"disk\",\"optimizer\":"
        "\"nvme\",\"param\":\"cpu\",\"stage\":3,\"activation_checkpoints\":\"nvme\",\"micro_batch\":8,\"gradient_accumulation\":"
        "4,\"predicted_seconds\":2,\"simulated\":true}}}";
    struct st_advice a = answer_of(2);
    struct st_json_writer w;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    a.tokens = 1000;
    a.config = NULL;
    for (uint64_t t = 0; t < STRATA_TIER_COUNT; t++) {
        a.capacity[t] = 11 + t;
        a.least[t] = 21 + t;
        a.together[t] = 31 + t;
    }
    a.changed[ST_CHANGE_GPU] = (struct st_changed){true, true, "card", a.tried[0]};
    a.changed[ST_CHANGE_RAM] = (struct st_changed){true, false, "memory", a.tried[0]};
    a.changed[ST_CHANGE_DRIVE] = (struct st_changed){true, true, "disk", a.tried[1]};
    st_json_begin(&w, file);
    st_advice_put(&a, &w);
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, wanted);
    free(text);
}

/* Faster is less time; settings are told where they are others. */
TEST(changes_are_held_against_the_best)
{
    struct st_advice a = answer_of(2);
    char line[160];

    snprintf(line, sizeof(line), "\n  with one change the step would take:\n    more drives: %-31s %9s   -25.0 %%\n", "2 drives",
             "1.5 s");
    a.changed[ST_CHANGE_DRIVE] = (struct st_changed){true, true, "2 drives", a.tried[1]};
    a.changed[ST_CHANGE_DRIVE].best.seconds = 1.5;
    must_hold(&a, line);
    a.changed[ST_CHANGE_DRIVE].best.micro_batch = 16;
    a.changed[ST_CHANGE_DRIVE].best.seconds = 2.5;
    must_hold(&a, "   +25.0 %  with optimizer nvme, weights cpu, activation checkpoints nvme, micro-batch 16, accumulation 4\n");
    a.changed[ST_CHANGE_DRIVE].fits = false;
    {
        char *text = text_of(&a);

        assert_null(strstr(text, "one change"));
        free(text);
    }
}
