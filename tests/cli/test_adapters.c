/* tests/cli/test_adapters.c - runs that train adapters: what they write, PEFT's adapters evaluated, going on, exporting, merging.
 */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAMILIES "tests/golden/families"
#define ADAPTERS "tests/golden/adapters"
#define TRAIN                                                                                                                    \
    "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --digest --model {w}/full --set "                 \
    "bf16.enabled=false "
#define BESIDE_MERGED                                                                                                            \
    "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --model {w}/merged --max-steps 1 "
#define BESIDE                                                                                                                   \
    "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --max-steps 1 --set bf16.enabled=false --model "
#define LORA "'strata.lora={\"r\":4,\"target_modules\":\"all-linear\",\"modules_to_save\":[\"ln_f\"]}'"

static void run(const struct workplace *w, const char *command)
{
    struct program p;

    workplace_run_ok(w, &p, command);
    program_free(&p);
}

static void same(const struct workplace *w, const char *a, const char *b, bool equal)
{
    size_t bytes[2];
    char *text[2] = {workplace_read(w, a, &bytes[0]), workplace_read(w, b, &bytes[1])};

    if ((bytes[0] == bytes[1] && memcmp(text[0], text[1], bytes[0]) == 0) != equal)
        fail_msg("%s and %s %s", a, b, equal ? "differ" : "are the same");
    free(text[0]);
    free(text[1]);
}

static double loss_after(const char *text, const char *begin)
{
    const char *at = strstr(text, begin);

    assert_non_null(at);
    return strtod(at + strlen(begin), NULL);
}

/* --- PEFT's adapters --- */

static double golden_loss(const char *name)
{
    char path[128];
    st_json *root;
    double loss;

    snprintf(path, sizeof(path), ADAPTERS "/%s/golden.json", name);
    assert_int_equal(st_json_parse_file(&root, path, 1 << 20), 0);
    loss = st_json_number(st_json_get(root, "loss"));
    st_json_free(root);
    return loss;
}

TEST(pefts_adapters_are_evaluated)
{
    static const char *const names[] = {"gemma2_caps", "gpt2_exact", "phi3_long"}; /* the others: tests/engine/test_golden.c */
    char command[512];
    struct program p;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        double want = golden_loss(names[i]), loss;

        snprintf(command, sizeof(command),
                 "eval --model " FAMILIES "/%s --data " FAMILIES
                 "/%s/tokens.bin --seq-len 32 --set bf16.enabled=false --adapter " ADAPTERS "/%s",
                 names[i], names[i], names[i]);
        workplace_run_ok(*state, &p, command);
        loss = loss_after(p.out, "loss ");
        if (fabs(loss - want) > 1e-5 * want)
            fail_msg("%s: loss %.7f, PEFT has %.7f", names[i], loss, want);
        program_free(&p);
    }
}

TEST(several_are_named)
{
    const double want = golden_loss("llama_linear");
    char name[600], command[2048];
    struct program p;

    workplace_run_ok(*state, &p,
                     "eval --model " FAMILIES "/llama_linear --data " FAMILIES
                     "/llama_linear/tokens.bin --seq-len 32 --set bf16.enabled=false "
                     "--adapter one=" ADAPTERS "/llama_linear " ADAPTERS "/llama_linear");
    assert_true(fabs(loss_after(p.out, "one: loss ") - want) <= 1e-5 * want);
    assert_true(fabs(loss_after(p.out, ADAPTERS "/llama_linear: loss ") - want) <= 1e-5 * want);
    program_free(&p);
    workplace_run_ok(*state, &p,
                     "eval --model " FAMILIES "/llama_linear --data " FAMILIES
                     "/llama_linear/tokens.bin --seq-len 32 --set bf16.enabled=false "
                     "--json --adapter one=" ADAPTERS "/llama_linear");
    assert_non_null(strstr(p.out, "{\"adapter\":\"one\",\"loss\":"));
    program_free(&p);

    memset(name, 'n', sizeof(name)); /* whole, however long it is */
    snprintf(command, sizeof(command),
             "eval --model " FAMILIES "/llama_linear --data " FAMILIES "/llama_linear/tokens.bin --seq-len 32 --json "
             "--adapter %.*s=" ADAPTERS "/llama_linear",
             (int)sizeof(name), name);
    workplace_run_ok(*state, &p, command);
    snprintf(command, sizeof(command), "{\"adapter\":\"%.*s\",\"loss\":", (int)sizeof(name), name);
    assert_non_null(strstr(p.out, command));
    program_free(&p);
}

/* --- ours --- */

/* A run writes its adapter and nothing else, as its last checkpoint is exported; it goes on from either. */
TEST(a_run_writes_its_adapter)
{
    const struct workplace *w = *state;

    run(w, TRAIN "--set " LORA " --max-steps 4 --save {w}/save --out {w}/adapter");
    assert_int_equal(workplace_entries(w, "adapter"), 2);
    run(w, "export {w}/save --out {w}/exported --quiet");
    assert_int_equal(workplace_entries(w, "exported"), 2);
    same(w, "adapter/adapter_model.safetensors", "exported/adapter_model.safetensors", true);
    same(w, "adapter/adapter_config.json", "exported/adapter_config.json", true);
    run(w, TRAIN "--adapter {w}/adapter --max-steps 2 --out {w}/more");
    same(w, "adapter/adapter_model.safetensors", "more/adapter_model.safetensors", false);
    same(w, "adapter/adapter_config.json", "more/adapter_config.json", true);
    run(w, "generate --model {w}/full --adapter {w}/more --prompt abc --max-tokens 4 --quiet");
}

/* Going on from a checkpoint has the bits of a run that never ended. */
TEST(a_run_resumes)
{
    const struct workplace *w = *state;
    char whole[160], parts[160];

    workplace_digests(w, TRAIN "--set " LORA " --max-steps 6", whole);
    run(w, TRAIN "--set " LORA " --max-steps 3 --save {w}/resumed");
    workplace_digests(w, TRAIN "--set " LORA " --max-steps 6 --resume {w}/resumed", parts);
    assert_string_equal(whole, parts);
}

#define PLAIN      "'strata.lora={\"r\":4,\"target_modules\":\"all-linear\"}'"
#define DROPOUT(p) "'strata.lora={\"r\":4,\"target_modules\":\"all-linear\",\"lora_dropout\":" p "}'"

/* The same masks on drives, recomputed, on one worker, and from the middle on. */
TEST(dropout_has_the_same_masks_everywhere)
{
    static const char *const ways[] = {
        "--threads 1 --set strata.activations=recomputed",
        "--nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "
        "--set zero_optimization.offload_param.device=nvme --set strata.cache=0",
        "--resume {w}/dropped",
    };
    const struct workplace *w = *state;
    char whole[160], is[160], none[160], command[640];

    workplace_digests(w, TRAIN "--max-steps 4 --set " DROPOUT("0"), none);
    workplace_digests(w, TRAIN "--max-steps 4 --set " PLAIN, is);
    assert_string_equal(none, is); /* left out, it is 0 */
    workplace_digests(w, TRAIN "--max-steps 4 --set " DROPOUT("0.25"), whole);
    assert_string_not_equal(none, whole);
    run(w, TRAIN "--max-steps 2 --save {w}/dropped --set " DROPOUT("0.25"));
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        snprintf(command, sizeof(command), TRAIN "--max-steps 4 --set %s %s", DROPOUT("0.25"), ways[i]);
        workplace_digests(w, command, is);
        if (strcmp(is, whole) != 0)
            fail_msg("%s\n%sexpected\n%s", command, is, whole);
    }
}

/* Adapters that see nothing learn nothing: refused before anything is written, but where modules are trained beside them. */
TEST(dropout_of_all_is_refused)
{
    static const char *const all[] = {DROPOUT("1"), DROPOUT("0.9999999")};
    const struct workplace *w = *state;
    char command[512];
    struct program p;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        snprintf(command, sizeof(command), TRAIN "--max-steps 2 --out {w}/nothing --set %s", all[i]);
        workplace_run(w, &p, command);
        assert_int_equal(p.code, 2);
        assert_non_null(strstr(p.err, "adapters see less than a millionth of their inputs and learn nothing: lower it"));
        assert_false(workplace_exists(w, "nothing"));
        program_free(&p);
    }
    workplace_run_ok(w, &p,
                     TRAIN "--max-steps 2 --set 'strata.lora={\"r\":4,\"target_modules\":\"all-linear\",\"lora_dropout\":1,"
                           "\"modules_to_save\":[\"ln_f\"]}'");
    assert_non_null(strstr(p.err, "lora_dropout 1: adapters learn nothing"));
    program_free(&p);
    run(w, TRAIN "--max-steps 2 --set " DROPOUT("0.999"));
}

TEST(dropout_that_changes_is_told)
{
    const struct workplace *w = *state;
    struct program p;

    run(w, TRAIN "--max-steps 2 --save {w}/told --set " DROPOUT("0.25"));
    workplace_run_ok(w, &p, TRAIN "--max-steps 3 --resume {w}/told --set " DROPOUT("0.5"));
    assert_non_null(strstr(
        p.err, "strata.lora is {\"r\":4,\"target_modules\":\"all-linear\",\"lora_dropout\":0.5} from here on; in"));
    program_free(&p);
}

/* The line of a text that begins so. */
static const char *line_of(char out[160], const char *text, const char *begin)
{
    const char *at = strstr(text, begin);

    assert_non_null(at);
    snprintf(out, 160, "%.*s", (int)strcspn(at, "\n"), at);
    return out;
}

/* What eval, generate, a run's first step and its evaluation say of a trained adapter. */
static void ask(const struct workplace *w, char said[4][160])
{
    static const char trains[] =
        "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --model {w}/full --adapter {w}/dropping "
        "--set bf16.enabled=false --lr 0 --max-steps 1 --eval-data {w}/good.bin --eval-every 1";
    struct program p;

    workplace_run_ok(w, &p, "eval --data {w}/good.bin --seq-len 32 --model {w}/full --adapter {w}/dropping");
    line_of(said[0], p.out, "loss");
    program_free(&p);
    workplace_run_ok(w, &p, "generate --model {w}/full --adapter {w}/dropping --prompt abc --max-tokens 8 --quiet");
    snprintf(said[1], 160, "%s", p.out);
    program_free(&p);
    workplace_run_ok(w, &p, trains);
    line_of(said[2], p.out, "eval after step 1");
    snprintf(said[3], 160, "%.4f", loss_after(p.out, "step 1/1 | loss "));
    program_free(&p);
}

TEST(only_steps_drop_anything)
{
    const struct workplace *w = *state;
    char with[4][160], without[4][160];
    size_t bytes;
    char *text, *at;

    run(w, TRAIN "--lr 0.05 --max-steps 4 --out {w}/dropping --set " DROPOUT("0.5"));
    ask(w, with);
    text = workplace_read(w, "dropping/adapter_config.json", &bytes);
    at = strstr(text, "\"lora_dropout\":0.5");
    assert_non_null(at);
    memcpy(at, "\"lora_dropout\":0.0", strlen("\"lora_dropout\":0.0"));
    workplace_write(w, "dropping/adapter_config.json", text, bytes);
    free(text);
    ask(w, without);
    for (int i = 0; i < 3; i++)
        assert_string_equal(with[i], without[i]);
    assert_string_not_equal(with[3], without[3]);
}

/* What differs is named: the settings, or else the first tensor. */
TEST(a_run_of_another_adapter_is_refused)
{
    static const struct {
        const char *options, *says;
    } rows[] = {
        {"--set 'strata.lora={\"r\":5,\"target_modules\":\"all-linear\"}'",
         "was saved by a run with strata.lora (--lora) {\"r\":4,\"target_modules\":\"all-linear\""},
        {"", "strata.lora (--lora) {\"r\":4,"},
        {"--set 'strata.lora={\"r\":4,\"target_modules\":[\"c_fc\"]}'", "strata.lora (--lora) \"target_modules\":\"all-linear\""},
    };
    static const char listed[] = "--set 'strata.lora={\"r\":4,\"target_modules\":[\"c_fc\",\"%s\"]}'";
    const struct workplace *w = *state;
    char command[512], lora[128];
    struct program list;

    snprintf(lora, sizeof(lora), listed, "c_attn");
    snprintf(command, sizeof(command), TRAIN "--max-steps 1 --save {w}/listed %s", lora);
    run(w, command);
    snprintf(lora, sizeof(lora), listed, "c_proj");
    snprintf(command, sizeof(command), TRAIN "--max-steps 2 --resume {w}/listed %s", lora);
    workplace_run(w, &list, command);
    if (list.code != 2 || strstr(list.err, "strata.lora (--lora) \"target_modules\":[\"c_fc\",\"c_attn\"]") == NULL)
        fail_msg("%s: exit code %d\n%s", command, list.code, list.err);
    program_free(&list);
    run(w, TRAIN "--set " LORA " --max-steps 1 --save {w}/ranked");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;

        snprintf(command, sizeof(command), TRAIN "--max-steps 2 --resume {w}/ranked %s", rows[i].options);
        workplace_run(w, &p, command);
        if (p.code != 2 || strstr(p.err, rows[i].says) == NULL)
            fail_msg("%s: exit code %d\n%s", command, p.code, p.err);
        program_free(&p);
    }
}

/* An adapter with a value that is no number is named, and not the model or the learning rate. */
TEST(values_that_are_no_numbers_are_named)
{
    static const char *const commands[] = {TRAIN "--max-steps 1 --adapter {w}/broken",
                                           "eval --data {w}/good.bin --seq-len 32 --model {w}/full --adapter {w}/broken",
                                           "generate --model {w}/full --adapter {w}/broken --prompt abc --max-tokens 1 --quiet"};
    const struct workplace *w = *state;
    struct program p;
    size_t bytes;
    char *weights;

    run(w, TRAIN "--set " LORA " --max-steps 1 --out {w}/broken");
    weights = workplace_read(w, "broken/adapter_model.safetensors", &bytes);
    memset(weights + bytes - 4, 0xff, 4);
    workplace_write(w, "broken/adapter_model.safetensors", weights, bytes);
    free(weights);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        workplace_run(w, &p, commands[i]);
        if (p.code == 0 || strstr(p.err, "broken/adapter_model.safetensors: tensor ") == NULL ||
            strstr(p.err, " is not finite: the file is damaged") == NULL)
            fail_msg("%s: exit code %d\n%s", commands[i], p.code, p.err);
        program_free(&p);
    }
}

/* A job that is submitted again although it has ended finds nothing to do, or what stands in its way. */
TEST(a_run_that_has_ended_ends_at_once)
{
    const struct workplace *w = *state;
    struct program p;

    run(w, TRAIN "--set " LORA " --max-steps 2 --save {w}/again --resume auto --out {w}/ended");
    workplace_run_ok(w, &p, TRAIN "--set " LORA " --max-steps 2 --save {w}/again --resume auto --out {w}/ended");
    assert_non_null(strstr(p.out, "nothing is left to do"));
    program_free(&p);
    workplace_run(w, &p, TRAIN "--set " LORA " --max-steps 2 --save {w}/again --resume auto --out {w}/adapter");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "holds another adapter than that of "));
    program_free(&p);
    workplace_run(w, &p, TRAIN "--set " LORA " --max-steps 3 --save {w}/again --resume auto --out {w}/ended");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "holds an adapter already, and the run goes on from step 2 of 3"));
    program_free(&p);
}

/* The model with its adapter, the checkpoint, and the merged model are one model; weights in fp32 lose nothing. */
TEST(merged_or_not_it_is_one_model)
{
    const struct workplace *w = *state;
    double loss[4];
    static const char *const models[] = {"{w}/full --adapter {w}/adapter", "{w}/save", "{w}/merged", "{w}/merged2"};
    char command[512];

    run(w, "export --merge --model {w}/full --adapter {w}/adapter --out {w}/merged");
    run(w, "export --merge {w}/save --out {w}/merged2");
    same(w, "merged/model.safetensors", "merged2/model.safetensors", true);
    same(w, "merged/model.safetensors", "full/model.safetensors", false);
    same(w, "merged/config.json", "full/config.json", true);
    for (int i = 0; i < 4; i++) {
        struct program p;

        snprintf(command, sizeof(command), "eval --data {w}/good.bin --seq-len 32 --set bf16.enabled=false --model %s",
                 models[i]);
        workplace_run_ok(w, &p, command);
        loss[i] = loss_after(p.out, "loss ");
        program_free(&p);
    }
    assert_true(loss[0] == loss[1]);
    assert_true(loss[2] == loss[3]);
    assert_true(fabs(loss[0] - loss[2]) <= 1e-5 * loss[0]);
}

/* Loaders take a model and an adapter in one directory for one thing, and a merge does not replace what it reads. */
TEST(models_and_adapters_are_kept_apart)
{
    static const struct {
        const char *command, *sentence;
    } cases[] = {
        {"export --merge --model {w}/full --adapter {w}/adapter --out {w}/full --overwrite", "is the model that is merged"},
        {"export --merge --model {w}/full --adapter {w}/adapter --out {w}/adapter --overwrite", "holds an adapter"},
        {TRAIN "--set " LORA " --max-steps 1 --out {w}/full --overwrite", "holds a model"},
        {TRAIN "--max-steps 1 --out {w}/adapter --overwrite", "holds an adapter"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct program p;

        workplace_run(w, &p, cases[i].command);
        if (p.code != 2 || strstr(p.err, cases[i].sentence) == NULL)
            fail_msg("strata %s: exit code %d: %s", cases[i].command, p.code, p.err);
        program_free(&p);
    }
    assert_int_equal(workplace_entries(w, "adapter"), 2);
    workplace_write(w, "full/adapter_config.json", "{}", 2);
    run(w, "export --merge --model {w}/full --adapter {w}/adapter --out {w}/merged3");
    assert_false(workplace_exists(w, "merged3/adapter_config.json"));
    workplace_remove(w, "full/adapter_config.json");
}

/* Files of an adapter tell no more of its base than a name. */
TEST(another_base_is_told)
{
    static const struct {
        const char *command;
        bool told;
    } cases[] = {
        {"eval --data {w}/good.bin --seq-len 32 --model {w}/full --adapter {w}/adapter", false},
        {"eval --data {w}/good.bin --seq-len 32 --model {w}/merged --adapter {w}/adapter", true},
        {"eval --data {w}/good.bin --seq-len 32 --model nano --adapter {w}/adapter", true},
        {TRAIN "--max-steps 1 --adapter {w}/adapter", false},
        {"train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --max-steps 1 --model {w}/merged --adapter "
         "{w}/adapter",
         true},
        {"generate --model {w}/merged --adapter {w}/adapter --prompt abc --max-tokens 1", true},
        {"export --merge --model {w}/merged --adapter {w}/adapter --out {w}/merged4", true},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct program p;

        workplace_run_ok(w, &p, cases[i].command);
        if ((strstr(p.err, "the adapter was trained on ") != NULL) != cases[i].told)
            fail_msg("strata %s: %s", cases[i].command, p.err);
        program_free(&p);
    }
}

static void names_base(const struct workplace *w, const char *config, const char *base)
{
    static const char key[] = "\"base_model_name_or_path\":\"";
    size_t bytes, length;
    char *text = workplace_read(w, config, &bytes);
    const char *name = strstr(text, key);

    assert_non_null(name);
    name += strlen(key);
    length = strcspn(name, "\"");
    if (length < strlen(base) || memcmp(name + length - strlen(base), base, strlen(base)) != 0)
        fail_msg("%s has another base than %s: %s", config, base, text);
    free(text);
}

/* The name is that of the run's own model, whatever adapter its settings came from. */
TEST(an_adapter_names_what_it_was_trained_beside)
{
    const struct workplace *w = *state;

    names_base(w, "adapter/adapter_config.json", "/full");
    run(w, BESIDE_MERGED "--lora {w}/adapter/adapter_config.json --out {w}/renamed");
    names_base(w, "renamed/adapter_config.json", "/merged");
    run(w, BESIDE_MERGED "--adapter {w}/adapter --out {w}/renamed --overwrite --save {w}/renaming");
    names_base(w, "renamed/adapter_config.json", "/merged");
    run(w, "export {w}/renaming --out {w}/renamed --overwrite");
    names_base(w, "renamed/adapter_config.json", "/merged");
}

/* An adapter's checkpoint holds the weights that its own run began with; other checkpoints hold weights of their own. */
TEST(a_checkpoint_is_trained_on)
{
    const struct workplace *w = *state;
    struct program p;

    run(w, BESIDE "{w}/save --save {w}/second --out {w}/of.second");
    names_base(w, "of.second/adapter_config.json", "/full");
    run(w, BESIDE "{w}/second --save {w}/third --out {w}/of.third");
    names_base(w, "of.third/adapter_config.json", "/full");
    run(w, "export {w}/third --out {w}/of.third --overwrite");
    names_base(w, "of.third/adapter_config.json", "/full");
    run(w, "export --merge {w}/third --out {w}/merged.third");
    run(w, "export --merge --model {w}/full --adapter {w}/of.third --out {w}/merged.third2");
    same(w, "merged.third/model.safetensors", "merged.third2/model.safetensors", true);
    same(w, "merged.third/model.safetensors", "merged/model.safetensors", false);

    run(w, BESIDE "{w}/full --save {w}/trained");
    run(w, BESIDE "{w}/trained --set " LORA " --save {w}/fourth --out {w}/of.fourth");
    names_base(w, "of.fourth/adapter_config.json", "/trained/step-00000001");
    workplace_run(w, &p, "export --merge {w}/fourth --out {w}/merged.fourth");
    assert_int_equal(p.code, 2);
    if (strstr(p.err, "its run began with the weights of the checkpoint ") == NULL ||
        strstr(p.err, "trained/step-00000001 --out DIR writes them, and --model DIR names them here") == NULL)
        fail_msg("%s", p.err);
    program_free(&p);
    run(w, "export {w}/trained --out {w}/trained.model");
    run(w, "export --merge {w}/fourth --model {w}/trained.model --out {w}/merged.fourth");
}

/* {w}/full is a model in fp32. */
static int setup(void **state)
{
    if (workplace_setup(state) != 0)
        return -1;
    run(*state, "train --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --model nano --set bf16.enabled=false "
                "--max-steps 1 --out {w}/full");
    return 0;
}

TEST_GROUP(setup, workplace_teardown);
