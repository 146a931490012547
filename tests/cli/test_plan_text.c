/* tests/cli/test_plan_text.c - the text of a plan has the numbers of its JSON, each in its place and once. */
#include "core/base/size.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tiers[] = {"device", "host", "nvme"};
#define TIERS (sizeof(tiers) / sizeof(tiers[0]))

static const char card[] =
    "{\"name\":\"card\",\"device_bytes\":2147483648,\"host_bytes\":3221225472,\"nvme_bytes\":1e13,\"workers\":16,"
    "\"device_is_host\":false,\"matmul_flops\":1e14,\"upload\":2e10,\"download\":2e10,\"read\":6e9,\"write\":4e9,"
    "\"mixed\":6e9,\"update\":2e9,\"memory\":9e11}";

static const char host[] =
    "{\"name\":\"host\",\"device_bytes\":1073741824,\"host_bytes\":3221225472,\"nvme_bytes\":1e13,\"workers\":16,"
    "\"device_is_host\":true,\"matmul_flops\":1e12,\"read\":6e9,\"write\":4e9,\"mixed\":6e9,\"update\":2e9}";

struct pair {
    char *text;
    st_json *root;
};

static st_json *parse(const struct workplace *w, const char *command)
{
    struct program p;
    st_json *root;

    workplace_run_ok(w, &p, command);
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "plan"), STRATA_OK);
    program_free(&p);
    return root;
}

static struct pair plan(const struct workplace *w, const char *options)
{
    struct pair both;
    struct program p;
    char command[1024];

    snprintf(command, sizeof(command), "plan --model nano --seq-len 64 --nvme /nowhere %s", options);
    workplace_run_ok(w, &p, command);
    both.text = strdup(p.out);
    assert_non_null(both.text);
    program_free(&p);
    strcat(command, " --json");
    both.root = parse(w, command);
    return both;
}

static void end(struct pair *both)
{
    free(both->text);
    st_json_free(both->root);
}

static void once(const struct pair *both, const char *wanted)
{
    const char *at = strstr(both->text, wanted);

    if (at == NULL || strstr(at + 1, wanted) != NULL)
        fail_msg("%s is %s\n%s", wanted, at == NULL ? "missing" : "there twice", both->text);
}

static double member(const st_json *root, const char *first, const char *second, const char *third)
{
    const st_json *node = st_json_get(st_json_get(root, first), second);

    assert_non_null(node);
    return third == NULL ? st_json_number(node) : json_number(node, third);
}

/* A row of the table of tiers, from its line's begin to its end. */
static void row(const struct pair *both, const char *label, const double bytes[TIERS])
{
    char line[160], size[24];
    size_t length = (size_t)snprintf(line, sizeof(line), "\n  %-24s ", label);

    once(both, line);
    line[--length] = '\0';
    for (size_t t = 0; t < TIERS; t++)
        length += (size_t)snprintf(line + length, sizeof(line) - length, " %12s",
                                   bytes[t] > 0 ? st_size_text(size, (uint64_t)bytes[t]) : "-");
    snprintf(line + length, sizeof(line) - length, "\n");
    once(both, line);
}

static void check_tiers(const struct pair *both)
{
    static const char *const rows[][2] = {{"budget", "capacity"}, {"needed", "needed"}, {"smallest possible", "minimum"}};

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        double bytes[TIERS];

        for (size_t t = 0; t < TIERS; t++)
            bytes[t] = member(both->root, "tiers", tiers[t], rows[r][1]);
        row(both, rows[r][0], bytes);
    }
}

/* All items of one name are one row; with those of the others they make up what is needed. */
static void check_items(const struct pair *both)
{
    double sum[TIERS] = {0};

    for (const st_json *n = st_json_first(st_json_get(both->root, "items")); n != NULL; n = st_json_next(n)) {
        double bytes[TIERS] = {0};
        char label[80];

        for (const st_json *o = st_json_first(st_json_get(both->root, "items")); o != NULL; o = st_json_next(o))
            for (size_t t = 0; t < TIERS; t++)
                if (strcmp(json_text(o, "name"), json_text(n, "name")) == 0 && strcmp(json_text(o, "tier"), tiers[t]) == 0)
                    bytes[t] += json_number(o, "bytes");
        for (size_t t = 0; t < TIERS; t++)
            if (strcmp(json_text(n, "tier"), tiers[t]) == 0)
                sum[t] += json_number(n, "bytes");
        snprintf(label, sizeof(label), "  %s", json_text(n, "name"));
        if (bytes[0] + bytes[1] + bytes[2] > 0)
            row(both, label, bytes);
    }
    for (size_t t = 0; t < TIERS; t++)
        assert_true(sum[t] == member(both->root, "tiers", tiers[t], "needed"));
}

static void check_traffic(const struct pair *both)
{
    static const char *const phases[][2] = {{"first", "bytes of the first step"},
                                            {"steady", "bytes of a steady step"},
                                            {"flush", "bytes of a flush"},
                                            {"eval", "bytes of an evaluation batch"}};
    static const char *const links[] = {"upload", "download", "read", "write", "comm"};

    for (size_t p = 0; p < sizeof(phases) / sizeof(phases[0]); p++) {
        char line[256], size[24];
        size_t length = (size_t)snprintf(line, sizeof(line), "\n  %s: ", phases[p][1]);

        for (size_t l = 0; l < sizeof(links) / sizeof(links[0]); l++) {
            const double bytes = member(both->root, "traffic_by_phase", phases[p][0], links[l]);

            if (l < 4 || bytes > 0)
                length += (size_t)snprintf(line + length, sizeof(line) - length, "%s%s %s", l > 0 ? ", " : "", links[l],
                                           st_size_text(size, (uint64_t)bytes));
        }
        snprintf(line + length, sizeof(line) - length, "\n");
        once(both, line);
    }
}

static unsigned placed(const struct pair *both, const char *key)
{
    return (unsigned)member(both->root, "placement", key, NULL);
}

static void check_placement(const struct pair *both)
{
    const st_json *placement = st_json_get(both->root, "placement");
    char line[512];

    snprintf(line, sizeof(line),
             ", %s; weights of %u of %u pages stay on the device; %u of %u blocks keep their activations, %u of %u head slices "
             "their logits, activation checkpoints on %s\n",
             json_text(placement, "accumulation"), placed(both, "resident_pages"), placed(both, "pages"),
             placed(both, "kept_blocks"), placed(both, "blocks"), placed(both, "kept_head_slices"), placed(both, "head_slices"),
             json_text(placement, "activation_tier"));
    once(both, line);
    snprintf(
        line, sizeof(line),
        "\n  state: moments in %s; %u pages on the device, %u of %u chunks kept above their tier; cached weights: %u pages\n",
        json_text(placement, "moments"), placed(both, "device_state_pages"), placed(both, "cached_chunks"),
        placed(both, "chunks"), placed(both, "cached_weight_pages"));
    once(both, line);
    snprintf(line, sizeof(line),
             "\n  slots: %u weights, %u host weights, %u state, %u activations, %u gradients; program: %u ops, ",
             placed(both, "weight_slots"), placed(both, "host_weight_slots"), placed(both, "state_slots"),
             placed(both, "activation_slots"), placed(both, "gradient_slots"), (unsigned)json_number(both->root, "ops"));
    once(both, line);
}

static void check_saving(const struct pair *both)
{
    const st_json *saving = st_json_get(both->root, "checkpoints");
    char line[256], size[24];

    if (saving == NULL)
        return;
    snprintf(line, sizeof(line), "\n  checkpoints: %.0f kept, in %.0f sets of %s on nvme; each ", json_number(saving, "keep"),
             json_number(saving, "sets"), st_size_text(size, (uint64_t)json_number(saving, "set_bytes")));
    once(both, line);
}

/* Named with their seconds where there are any: a device that is the host has no passes of its own. */
static void check_passes(const struct pair *both)
{
    static const char *const rows[][2] = {{"update", "updates"},
                                          {"round", "gradients rounded"},
                                          {"reduce", "sums of leaves added"},
                                          {"zero", "sums zeroed"},
                                          {"rows", "rows and norms"}};
    const st_json *passes = st_json_get(both->root, "pass_seconds");
    char parts[256] = "", line[512], text[24];
    double sum = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const double seconds = json_number(passes, rows[i][0]);

        sum += seconds;
        if (seconds > 0)
            snprintf(parts + strlen(parts), sizeof(parts) - strlen(parts), "%s %s %s", parts[0] != '\0' ? "," : "", rows[i][1],
                     st_seconds_text(text, seconds));
    }
    assert_int_equal(strstr(both->text, "the device's own passes over its memory") != NULL, sum > 0);
    if (sum == 0)
        return;
    snprintf(line, sizeof(line), " GB/s: %s of a step:%s\n", st_seconds_text(text, sum), parts);
    once(both, line);
}

static void check_first_lines(const struct pair *both)
{
    const double ranks = member(both->root, "world", "ranks", NULL), nodes = member(both->root, "world", "nodes", NULL);
    char line[256], count[24] = "", leaves[32] = "";

    if (ranks > 1)
        snprintf(count, sizeof(count), "%.0f x ", ranks);
    if (json_number(both->root, "leaves") > ranks)
        snprintf(leaves, sizeof(leaves), " in %.0f leaves", json_number(both->root, "leaves") / ranks);
    snprintf(line, sizeof(line), "; a step is %s%.0f x %.0f sequences of %.0f tokens%s\n", count,
             json_number(both->root, "gradient_accumulation"), json_number(both->root, "micro_batch"),
             json_number(both->root, "sequence_length"), leaves);
    once(both, line);
    if (ranks == 1)
        return;
    snprintf(line, sizeof(line), "\n  rank %.0f of %.0f, on %.0f node%s: ZeRO stage %.0f; ",
             member(both->root, "world", "rank", NULL), ranks, nodes, nodes > 1 ? "s" : "",
             member(both->root, "world", "stage", NULL));
    once(both, line);
}

TEST(numbers_are_those_of_the_json)
{
#define CARD "--machine {w}/card.json "
#define NVME "--set zero_optimization.offload_optimizer.device=nvme "
    static const char *const options[] = {CARD "--micro-batch 2 --grad-accum 3",
                                          CARD "--host-memory 14MiB --device-memory 12MiB --set zero_optimization.stage=3 " NVME
                                               "--set zero_optimization.offload_param.device=cpu",
                                          "--machine {w}/host.json --micro-batch 2", /* the device is the host */
                                          CARD "--grad-accum 4 --set strata.leaves=2 --save {w}/checkpoints --keep 3 " NVME,
                                          "--machine tests/machines/h100-node8.json --ranks 12 --nodes 3 --set "
                                          "zero_optimization.stage=3 --save {w}/checkpoints " NVME};
    const struct workplace *w = *state;

    workplace_write(w, "card.json", card, strlen(card));
    workplace_write(w, "host.json", host, strlen(host));
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        struct pair both = plan(w, options[i]);

        check_first_lines(&both);
        check_tiers(&both);
        check_items(&both);
        check_traffic(&both);
        check_placement(&both);
        check_saving(&both);
        check_passes(&both);
        end(&both);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
