/* tests/cli/test_plan_ranks.c - strata plan --ranks, --nodes and --scale: what one of several ranks has, and a table over many.
 */
#include "core/base/size.h"
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NODE "--machine tests/machines/h100-node8.json "
#define PLAN                                                                                                                     \
    "plan --model nano --seq-len 128 --json " NODE                                                                               \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=cpu --set strata.cache=0 "

#define HOST "plan --model nano --seq-len 32 --machine {w}/host.json --ranks 4 --scale --json "

static st_json *plan(const struct workplace *w, struct program *p, const char *command)
{
    st_json *root;

    workplace_run_ok(w, p, command);
    assert_int_equal(st_json_parse(&root, p->out, strlen(p->out), "plan"), STRATA_OK);
    return root;
}

static double capacity(const st_json *root, const char *tier)
{
    return json_number(st_json_get(st_json_get(root, "tiers"), tier), "capacity");
}

/* A node's memory and drives are its ranks'; each has its device. */
TEST(a_rank_has_its_part_of_a_node)
{
    static const struct {
        const char *command;
        double ranks, nodes, here;
    } rows[] = {
        {PLAN "--ranks 1", 1, 1, 1},
        {PLAN "--ranks 4", 4, 1, 4},
        {PLAN "--ranks 16", 16, 2, 8},
        {PLAN "--ranks 16 --nodes 4", 16, 4, 4},
        {PLAN "--ranks 1024 --nodes 1", 1024, 1, 1024},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;
        st_json *root = plan(w, &p, rows[i].command);
        const st_json *world = st_json_get(root, "world");

        assert_true(json_number(world, "rank") == 0 && json_number(world, "ranks") == rows[i].ranks);
        assert_true(json_number(world, "nodes") == rows[i].nodes && json_number(world, "stage") == 3);
        assert_true(capacity(root, "device") == 80e9);
        assert_true(capacity(root, "host") == (double)(uint64_t)(1.9e12 / rows[i].here));
        assert_true(capacity(root, "nvme") == (double)(uint64_t)(28e12 / rows[i].here));
        st_json_free(root);
        program_free(&p);
    }
}

/* A device that is the host is a node's, too; but what a rank is given by name it has, in the table's rows as in the plan. */
TEST(what_a_rank_is_given_is_not_divided)
{
    static const char host[] = "{\"device_bytes\":8589934592,\"host_bytes\":17179869184,\"workers\":8,\"device_is_host\":true}";
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_write(w, "host.json", host, strlen(host));
    root = plan(w, &p, HOST);
    assert_true(capacity(root, "device") == 2147483648.0 && capacity(root, "host") == 4294967296.0);
    st_json_free(root);
    program_free(&p);
    root = plan(w, &p, HOST "--device-memory 3GiB --threads 8");
    assert_true(capacity(root, "device") == 3221225472.0 && capacity(root, "host") == 4294967296.0);
    for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row))
        assert_true(st_json_bool(st_json_get(row, "fits")) && json_number(row, "device_bytes") <= 3221225472.0);
    st_json_free(root);
    program_free(&p);
}

/* What a drive's blocks add is left out of a rank's part, which is as many bytes per parameter for each number of ranks. */
TEST(bytes_without_padding_are_a_ranks_own)
{
    const struct workplace *w = *state;
    double of_one = 0;

    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        char command[512];
        struct program p;
        st_json *root;
        const st_json *traffic;
        double bytes;

        snprintf(command, sizeof(command),
                 "plan --model mini --seq-len 32 --json " NODE
                 "--set zero_optimization.stage=3 --set strata.cache=0 --ranks %u --nvme /drives "
                 "--set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_param.device=nvme",
                 ranks);
        root = plan(w, &p, command);
        traffic = st_json_get(root, "traffic");
        bytes = json_number(root, "nvme_bytes_without_padding");
        assert_true(bytes > 0 && bytes <= json_number(traffic, "read") + json_number(traffic, "write"));
        of_one = ranks == 1 ? bytes : of_one;
        if (fabs(ranks * bytes / of_one - 1) > 0.01)
            fail_msg("%u ranks: %.0f bytes each, one: %.0f", ranks, bytes, of_one);
        st_json_free(root);
        program_free(&p);
    }
}

/* What comes to a rank, beside ZeRO: of P = 858,880 parameters in bf16 and 4 micro-batches on 2 ranks 2 P, 5 P and 12 P. With
 * adapters of A = 32,768 in fp32 stage 3 gathers the 2 P bytes of the others, too. */
TEST(exchanges_are_beside_those_of_zero)
{
    static const struct {
        const char *options, *said;
    } rows[] = {
        {"--set zero_optimization.stage=1",
         "sums of gradients in fp32 (strata.wire); by ZeRO-1 as its paper counts, 1.64 MiB would"},
        {"--set zero_optimization.stage=2", "by ZeRO-2 as its paper counts, 4.10 MiB would"},
        {"--set zero_optimization.stage=3 --set strata.wire=bf16",
         "sums of gradients in bf16; by ZeRO-3 as its paper counts, 9.83 MiB would"},
        {"--set zero_optimization.stage=3 --set 'strata.lora={\"r\":4,\"target_modules\":\"all-linear\"}'",
         "by ZeRO-3 as its paper counts, 7.30 MiB would"},
        {"--set zero_optimization.stage=1 --set 'strata.lora={\"r\":4,\"target_modules\":\"all-linear\"}'",
         "by ZeRO-1 as its paper counts, 128 KiB would"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512];
        struct program p;

        snprintf(command, sizeof(command), "plan --model nano --seq-len 128 --grad-accum 4 --ranks 2 " NODE "%s",
                 rows[i].options);
        workplace_run_ok(w, &p, command);
        if (strstr(p.out, rows[i].said) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", command, p.out, rows[i].said);
        program_free(&p);
    }
}

/* The paper's 16 P, 4 P + 12 P / N, 2 P + 14 P / N and 16 P / N of GPT-2's P on 4 ranks, in bf16 and fp32 (where weights and
 * gradients have 4 bytes); here 14 P, then 2 P + 12 P / N, and 16 bytes where no master is split; slices are padded.  Adapters
 * leave P frozen. */
TEST(model_states_are_beside_those_of_zero)
{
    static const double p = 124439808, adapted = 589824;
    const struct {
        const char *options;
        double zero, own;
    } rows[] = {
        {"--set zero_optimization.stage=0 --ranks 4", 16 * p, 14 * p},
        {"--set zero_optimization.stage=1 --ranks 4", 4 * p + 12 * p / 4, 2 * p + 12 * p / 4},
        {"--set zero_optimization.stage=2 --ranks 4", 2 * p + 14 * p / 4, 2 * p + 12 * p / 4},
        {"--set zero_optimization.stage=3 --ranks 4", 16 * p / 4, 0},
        {"--set zero_optimization.stage=2", 16 * p, 14 * p},
        {"--set zero_optimization.stage=1 --ranks 4 --set bf16.enabled=false", 8 * p + 8 * p / 4, 4 * p + 12 * p / 4},
        {"--set zero_optimization.stage=1 --ranks 4 --set bf16.enabled=false --set fp16.enabled=true", 4 * p + 12 * p / 4,
         2 * p + 14 * p / 4},
        {"--set zero_optimization.stage=3 --ranks 4 --set 'strata.lora={\"r\":4,\"target_modules\":\"all-linear\"}'",
         (2 * p + 16 * adapted) / 4, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512];
        struct program q;
        st_json *root;
        double zero, own;

        snprintf(command, sizeof(command), "plan --model gpt2 --seq-len 128 --json " NODE "%s", rows[i].options);
        root = plan(*state, &q, command);
        zero = json_number(st_json_get(root, "model_states"), "zero_bytes");
        own = json_number(st_json_get(root, "model_states"), "bytes");
        if (fabs(zero / rows[i].zero - 1) > 1e-6 || (rows[i].own > 0 && fabs(own / rows[i].own - 1) > 5e-3))
            fail_msg("%s: %.0f and %.0f bytes, not %.0f and %.0f", command, zero, own, rows[i].zero, rows[i].own);
        st_json_free(root);
        program_free(&q);
    }
}

static double item(const st_json *root, const char *name)
{
    for (const st_json *i = st_json_first(st_json_get(root, "items")); i != NULL; i = st_json_next(i))
        if (strcmp(json_text(i, "name"), name) == 0 && strcmp(json_text(i, "tier"), "device") == 0)
            return json_number(i, "bytes");
    return 0;
}

/* Slices of GPT-2's twelve blocks on 4 ranks: a quarter of their 7,087,872 parameters' bf16 each, apart from what is whole, and
 * with that in the sum of the model states: 14 P / 4 of blocks, 2 P + 12 P / 4 of the rest. */
TEST(slices_have_a_row_of_their_own)
{
    static const double block = 7087872, rest = 124439808 - 12 * 7087872;
    static const char ask[] = "plan --model gpt2 --seq-len 128 --ranks 4 --set zero_optimization.stage=3 " NODE;
    char command[512];
    struct program p;
    st_json *root;
    double states, all;

    snprintf(command, sizeof(command), "%s --json", ask);
    root = plan(*state, &p, command);
    assert_true(item(root, "weights in slices") == 0 && item(root, "weights") >= 2 * (12 * block + rest));
    snprintf(command, sizeof(command), "%s --device-memory %.0f", ask,
             json_number(st_json_get(st_json_get(root, "tiers"), "device"), "minimum"));
    st_json_free(root);
    program_free(&p);
    workplace_run_ok(*state, &p, command);
    assert_non_null(strstr(p.out, "\n    weights in slices "));
    program_free(&p);
    strcat(command, " --json");
    root = plan(*state, &p, command);
    states = json_number(st_json_get(root, "model_states"), "bytes");
    all = item(root, "weights") + item(root, "weights in slices") + item(root, "gradients") + item(root, "optimizer state");
    assert_true(json_number(st_json_get(root, "placement"), "sliced_pages") == 12);
    if (fabs(item(root, "weights in slices") / (12 * block * 2 / 4) - 1) > 5e-3 ||
        fabs(item(root, "weights") / (2 * rest) - 1) > 5e-3)
        fail_msg("%.0f bytes in slices, %.0f whole", item(root, "weights in slices"), item(root, "weights"));
    if (states != all || fabs(states / (14 * 12 * block / 4 + 2 * rest + 12 * rest / 4) - 1) > 5e-3)
        fail_msg("%.0f bytes of model states, %.0f in the table", states, all);
    st_json_free(root);
    program_free(&p);
}

/* What does not fit has ZeRO's bytes alone, and what only reads has none. */
TEST(model_states_are_told_where_they_are_known)
{
    struct program p;

    workplace_run_ok(*state, &p, "plan --model gpt2 --seq-len 128 --ranks 8 " NODE "--set zero_optimization.stage=1");
    assert_non_null(strstr(p.out, "  model states as ZeRO-1 counts them: 653 MiB, 5.50 bytes a parameter; here "));
    program_free(&p);
    workplace_run(*state, &p,
                  "plan --model gpt2 --seq-len 128 --ranks 8 " NODE "--set zero_optimization.stage=1 --device-memory 9MiB");
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.out, "  model states as ZeRO-1 counts them: 653 MiB, 5.50 bytes a parameter\n"));
    program_free(&p);
}

/* Sixteen A100 are two nodes of eight: what crosses their network makes the step longer; --nodes says otherwise. */
TEST(cards_that_come_in_nodes_are_on_several)
{
    static const char ask[] =
        "plan --model gpt2 --seq-len 128 --json --gpu a100 --ram 1TB --set zero_optimization.stage=1 --ranks ";
    static const struct {
        const char *options;
        double nodes;
    } rows[] = {{"8", 1}, {"16", 2}, {"16 --nodes 1", 1}};
    double seconds[3];

    for (size_t i = 0; i < 3; i++) {
        char command[256];
        struct program p;
        st_json *root;

        snprintf(command, sizeof(command), "%s%s", ask, rows[i].options);
        root = plan(*state, &p, command);
        assert_true(json_number(st_json_get(root, "world"), "nodes") == rows[i].nodes);
        assert_true(json_number(st_json_get(root, "machine"), "link_nodes") == 170e9);
        seconds[i] = json_number(root, "predicted_seconds");
        assert_null(strstr(p.err, "network"));
        st_json_free(root);
        program_free(&p);
    }
    assert_true(seconds[1] > seconds[2]);
}

/* The row of as many ranks is the plan itself; a budget given by hand is a node's, too. */
TEST(the_table_has_the_plan)
{
    const struct workplace *w = *state;
    double ranks = 0, last_host = 0, of_one = 0;
    struct program p;
    st_json *root = plan(w, &p, PLAN "--ranks 16 --host-memory 8G --scale");
    const st_json *tiers = st_json_get(root, "tiers");

    assert_true(capacity(root, "host") == 1024.0 * 1024 * 1024);
    for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row)) {
        const double host = json_number(row, "host_bytes"), here = json_number(row, "ranks") < 8 ? json_number(row, "ranks") : 8;

        ranks = ranks == 0 ? 1 : 2 * ranks;
        assert_true(json_number(row, "ranks") == ranks && json_number(row, "nodes") == (ranks < 8 ? 1 : ranks / 8));
        assert_true(st_json_bool(st_json_get(row, "fits")));
        assert_true(json_number(row, "node_host_bytes") == here * host);
        assert_true(ranks == 1 || host <= last_host || ranks > 16); /* tokens of all ranks */
        assert_true(json_number(row, "tokens_per_second") > 0);
        of_one = ranks == 1 ? json_number(row, "tokens_per_second") : of_one;
        if (fabs(json_number(row, "efficiency") * ranks * of_one / json_number(row, "tokens_per_second") - 1) > 1e-9)
            fail_msg("%.0f ranks: efficiency %g", ranks, json_number(row, "efficiency"));
        last_host = host;
        if (ranks != 16)
            continue;
        assert_true(host == json_number(st_json_get(tiers, "host"), "needed"));
        assert_true(json_number(row, "device_bytes") == json_number(st_json_get(tiers, "device"), "needed"));
        assert_true(json_number(row, "predicted_seconds") == json_number(root, "predicted_seconds"));
        assert_true(json_number(row, "comm_bytes") == json_number(st_json_get(root, "traffic"), "comm"));
    }
    assert_true(ranks == 1024);
    st_json_free(root);
    program_free(&p);
}

/* So is each other row, though its ranks have other workers, with scratch of their own. */
TEST(each_row_is_the_plan_of_so_many)
{
    const struct workplace *w = *state;
    struct program p, own;
    st_json *root = plan(w, &p, "plan --model nano --micro-batch 4 --scale --json " NODE);

    for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row)) {
        char command[512];
        st_json *alone;

        if (json_number(row, "ranks") != 1 && json_number(row, "ranks") != 4)
            continue;
        snprintf(command, sizeof(command), "plan --model nano --micro-batch 4 --ranks %.0f --json " NODE,
                 json_number(row, "ranks"));
        alone = plan(w, &own, command);
        assert_true(json_number(row, "device_bytes") ==
                    json_number(st_json_get(st_json_get(alone, "tiers"), "device"), "needed"));
        assert_true(json_number(row, "predicted_seconds") == json_number(alone, "predicted_seconds"));
        st_json_free(alone);
        program_free(&own);
    }
    st_json_free(root);
    program_free(&p);
}

/* Each rank of a node has its files on the node's drives. */
TEST(what_drives_of_a_node_hold_is_of_all_its_ranks)
{
    const struct workplace *w = *state;
    uint32_t rows = 0;
    struct program p;
    st_json *root = plan(w, &p,
                         PLAN "--ranks 16 --scale --nvme /drives --set zero_optimization.offload_optimizer.device=nvme "
                              "--set strata.update=serial");

    for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row), rows++) {
        const double nvme = json_number(row, "nvme_bytes"), here = json_number(row, "ranks") < 8 ? json_number(row, "ranks") : 8;

        assert_true(nvme > 0 && json_number(row, "node_nvme_bytes") == here * nvme);
        if (json_number(row, "ranks") == 16)
            assert_true(nvme == json_number(st_json_get(st_json_get(root, "tiers"), "nvme"), "needed"));
    }
    assert_int_equal(rows, 11);
    program_free(&p);
    workplace_run_ok(w, &p,
                     "plan --model nano --seq-len 128 " NODE "--set zero_optimization.stage=3 --set strata.cache=0 --ranks 16 "
                     "--scale --nvme /drives --set zero_optimization.offload_optimizer.device=nvme --set strata.update=serial");
    for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row)) {
        char begin[32], held[24];
        const char *line;
        size_t length;

        snprintf(begin, sizeof(begin), "\n    %5.0f  %5.0f  ", json_number(row, "ranks"), json_number(row, "nodes"));
        line = strstr(p.out, begin);
        if (line == NULL)
            fail_msg("no row \"%s\" in\n%s", begin, p.out);
        length = strcspn(line + 1, "\n") + 1;
        st_size_text(held, (uint64_t)json_number(row, "node_nvme_bytes"));
        if (memmem(line, length, held, strlen(held)) == NULL)
            fail_msg("\"%.*s\" lacks \"%s\"", (int)length, line, held);
    }
    st_json_free(root);
    program_free(&p);
}

/* Tokens of all ranks in the time of their step, however many: 2^32 of 1024 ranks. */
TEST(tokens_of_all_ranks_are_counted)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root = plan(w, &p, "plan --model nano --seq-len 256 --micro-batch 4096 --grad-accum 4 --json --scale " NODE);
    double ranks = 0;

    for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row)) {
        const double tokens = json_number(row, "tokens_per_second") * json_number(row, "predicted_seconds");

        ranks = json_number(row, "ranks");
        assert_true(fabs(tokens / (ranks * 256 * 4096 * 4) - 1) < 1e-6);
    }
    assert_true(ranks == 1024);
    st_json_free(root);
    program_free(&p);
}

/* What one rank cannot hold, several can: rows that do not fit say what lacks, and the others are compared with the first that
 * fits. */
TEST(rows_that_do_not_fit_say_why)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p,
                     "plan --model tests/cli/wide-blocks --seq-len 128 --ranks 64 --scale --device-memory 5G " NODE
                     "--set zero_optimization.stage=1");
    if (strstr(p.out, "rank 0 of 64, on 8 nodes: ZeRO stage 1") == NULL ||
        strstr(p.out, "1      1  does not fit: a rank needs ") == NULL || strstr(p.out, "100.0 %") == NULL ||
        strstr(p.out, " GiB of device, and has 5.00 GiB\n") == NULL)
        fail_msg("%s", p.out);
    program_free(&p);
    /* Host memory is shared by the ranks of a node. */
    workplace_run_ok(w, &p,
                     "plan --model tests/cli/two-blocks --seq-len 128 --ranks 1 --scale --machine tests/machines/two-cores.json "
                     "--host-memory 800MiB --set zero_optimization.stage=2 --set zero_optimization.offload_optimizer.device=cpu");
    if (strstr(p.out, "     1024      1  does not fit: a rank needs ") == NULL ||
        strstr(p.out, " of host, and has 800 KiB\n") == NULL)
        fail_msg("%s", p.out);
    program_free(&p);
}

/* Where room is not what a row lacks, it says what; nothing is known of its bytes. */
TEST(a_row_without_a_plan_says_why)
{
    static const char many_chunks[] = "plan --model llama-2-7b --seq-len 128 --ranks 2 --scale --device-memory 100MiB "
                                      "--host-memory 100MiB --set strata.chunk_size=16384 --set zero_optimization.stage=1 " NODE;
    const struct workplace *w = *state;
    char json[512];
    struct program p;
    const st_json *row;
    st_json *root;

    workplace_run(w, &p, many_chunks);
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.out, "        1      1  not planned: a step of 1 micro-batches, 32 blocks and 411297 chunks "));
    assert_non_null(strstr(p.out, "        2      1  does not fit: a rank needs "));
    program_free(&p);
    snprintf(json, sizeof(json), "%s --json", many_chunks);
    workplace_run(w, &p, json);
    assert_int_equal(p.code, 3);
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "plan"), STRATA_OK);
    row = st_json_first(st_json_get(root, "scale"));
    assert_non_null(strstr(st_json_string(st_json_get(row, "reason")), "411297 chunks"));
    assert_false(st_json_bool(st_json_get(row, "fits")));
    for (size_t i = 0; i < 5; i++) {
        static const char *const bytes[] = {"device_bytes", "host_bytes", "nvme_bytes", "node_host_bytes", "node_nvme_bytes"};

        assert_int_equal(st_json_type(st_json_get(row, bytes[i])), ST_JSON_NULL);
        assert_int_equal(st_json_type(st_json_get(st_json_next(row), bytes[i])), ST_JSON_NUMBER);
    }
    assert_int_equal(st_json_type(st_json_get(st_json_next(row), "reason")), ST_JSON_NULL);
    st_json_free(root);
    program_free(&p);
}

/* A node has as many as its machine says, however many were asked for; --nodes says otherwise. */
TEST(a_table_has_nodes_of_the_machine)
{
    static const struct {
        const char *options;
        double here;
    } rows[] = {{"--ranks 4 " NODE, 8},
                {"--ranks 4 --gpu a100 --ram 1TB", 8},
                {"--ranks 4 --nodes 2 " NODE, 2},
                {"--ranks 4 --machine tests/machines/card-24gb.json", 4}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[256];
        struct program p;
        st_json *root;

        snprintf(command, sizeof(command), "plan --model nano --seq-len 32 --scale --json %s", rows[i].options);
        root = plan(*state, &p, command);
        for (const st_json *row = st_json_first(st_json_get(root, "scale")); row != NULL; row = st_json_next(row))
            if (json_number(row, "nodes") != fmax(1, json_number(row, "ranks") / rows[i].here))
                fail_msg("%s: %.0f ranks on %.0f nodes", command, json_number(row, "ranks"), json_number(row, "nodes"));
        st_json_free(root);
        program_free(&p);
    }
}

/* Where the ranks that were asked for have too little, the table says how many would do. */
TEST(a_plan_that_does_not_fit_has_the_table)
{
    static const char plan[] =
        "plan --model tests/cli/wide-blocks --seq-len 128 --scale --device-memory 5G " NODE "--set zero_optimization.stage=1";
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, plan);
    assert_int_equal(p.code, 3);
    assert_non_null(strstr(p.out, "1      1  does not fit: a rank needs "));
    assert_non_null(strstr(p.out, "100.0 %"));
    program_free(&p);
}

/* Without a rate of the network the plan says what it takes it for. */
TEST(an_unknown_network_is_named)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "plan --model nano --ranks 4 --nodes 2 --machine tests/machines/card-24gb.json");
    assert_non_null(strstr(p.err, "link_nodes in the machine file"));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --ranks 4 --machine tests/machines/card-24gb.json");
    assert_null(strstr(p.err, "link_nodes"));
    program_free(&p);
    workplace_run_ok(w, &p, "plan --model nano --ranks 4 --scale --machine tests/machines/card-24gb.json");
    assert_non_null(strstr(p.err, "link_nodes in the machine file"));
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
