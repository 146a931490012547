/* tests/model/test_hf_config_rope.c - rotary scaling of a config.json: read as transformers 4 and 5 read it, and refused where
 * they differ. */
#include "model/hf/hf_config_internal.h"
#include "model_fixture.h"
#include <math.h>

#define SIZES                                                                                                                    \
    "\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                            \
    "\"intermediate_size\":96,\"vocab_size\":96,\"max_position_embeddings\":32"
#define ORIGINAL(n) "\"original_max_position_embeddings\":" #n
#define BESIDE(n)   ORIGINAL(n) ","
#define WITHIN(n)   "," ORIGINAL(n)
#define LLAMA3      "\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1,\"high_freq_factor\":4"
#define YARN        "\"rope_type\":\"yarn\",\"factor\":4"
#define LONGROPE    "\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[2,2,2,2,2,2,2,2]"

static strata_status parse(struct st_model_config *c, const char *model, const char *beside, const char *key, const char *scaling)
{
    char text[1024];

    snprintf(text, sizeof(text), "{\"model_type\":\"%s\",%s" SIZES ",\"%s\":{%s}}", model, beside, key, scaling);
    memset(c, 0, sizeof(*c));
    return st_model_config_parse(c, text, strlen(text), "dir/config.json");
}

/* The scaling, what stands beside it, and what of it is taken. */
struct read_row {
    const char *model, *beside, *scaling;
    double attention;
    uint32_t original;
};

static void expect_read(const char *key, const struct read_row *rows, size_t count)
{
    struct st_model_config c;

    for (size_t i = 0; i < count; i++) {
        assert_ok(parse(&c, rows[i].model, rows[i].beside, key, rows[i].scaling));
        if (fabs((double)c.rope_attention - rows[i].attention) > 1e-6 || c.rope_original != rows[i].original)
            fail_msg("%s: %.9g from %u", rows[i].scaling, (double)c.rope_attention, c.rope_original);
    }
}

TEST(test_scaling_is_transformers)
{
    static const struct read_row rows[] = {
        {"phi3", "", LONGROPE, 1.0, 4096}, /* the family's, which is longer than the context */
        {"phi3", BESIDE(8), LONGROPE, 1.2909944487358056, 8},
        {"phi3", BESIDE(8), LONGROPE WITHIN(8), 1.2909944487358056, 8},
        {"phi3", BESIDE(8), LONGROPE ",\"factor\":4", 1.2909944487358056, 8},
        {"phi3", "", LONGROPE ",\"attention_factor\":1.5", 1.5, 4096},
        {"llama", "", LONGROPE ",\"factor\":1", 1.0, 32},
        {"llama", "", LONGROPE ",\"factor\":4", 1.1832159566199232, 32}, /* without an original both take it */
        {"llama", "", LONGROPE WITHIN(32), 1.0, 32},
        {"llama", BESIDE(8), LONGROPE, 1.2909944487358056, 8},
        {"llama", BESIDE(8), LONGROPE ",\"factor\":3,\"attention_factor\":1.25", 1.25, 8}, /* which neither reads then */
        {"llama", "", "\"type\":\"yarn\",\"factor\":1", 1.0, 32},
        {"llama", "", YARN, 1.1386294361119891, 32},
        {"llama", "", YARN ",\"attention_factor\":0.75" WITHIN(7), 0.75, 7},
        {"llama", BESIDE(7), YARN WITHIN(7), 1.1386294361119891, 7},
        {"llama", BESIDE(32), YARN, 1.1386294361119891, 32},
        {"llama", "", YARN ",\"mscale\":2,\"mscale_all_dim\":0.5", 1.1944648761087142, 32},
        {"llama", "", YARN ",\"mscale\":2", 1.1386294361119891, 32},
        {"llama", BESIDE(8), LLAMA3 WITHIN(8), 0.0, 8},
    };

    expect_read("rope_scaling", rows, sizeof(rows) / sizeof(rows[0]));
}

/* rope_parameters are transformers 5's alone. */
TEST(test_parameters_are_those_of_5)
{
    static const struct read_row rows[] = {
        {"phi3", BESIDE(8), LONGROPE ",\"factor\":1", 1.0, 8},
        {"phi3", BESIDE(8), LONGROPE ",\"factor\":0.5", 1.0, 8},
        {"llama", "", LONGROPE WITHIN(8), 1.2909944487358056, 8},
        {"llama", "", LONGROPE WITHIN(8) ",\"factor\":3", 1.2362527385505437, 8},
        {"llama", BESIDE(7), YARN, 1.1386294361119891, 7},
        {"gemma3_text", BESIDE(7), "\"full_attention\":{" YARN "}", 1.1386294361119891, 32}, /* not of one type of layer */
    };

    expect_read("rope_parameters", rows, sizeof(rows) / sizeof(rows[0]));
}

/* Of the positions that scaling reaches; max_position_embeddings is 32. */
TEST(test_context_is_the_original_times_the_factor)
{
    static const struct {
        const char *model, *key, *scaling;
        uint32_t context;
    } rows[] = {
        {"llama", "rope_scaling", YARN, 128},
        {"llama", "rope_scaling", YARN WITHIN(16), 64},
        {"llama", "rope_scaling", YARN WITHIN(4), 32}, /* never less than the file says */
        {"qwen2", "rope_scaling", "\"type\":\"yarn\",\"factor\":2.5" WITHIN(32), 80},
        {"qwen2", "rope_parameters", YARN WITHIN(32), 128},
        {"llama", "rope_scaling", "\"type\":\"yarn\",\"factor\":1e30", 1 << 24},
        {"llama", "rope_scaling", "\"type\":\"linear\",\"factor\":4", 128},
        {"llama", "rope_parameters", "\"rope_type\":\"linear\",\"factor\":4" WITHIN(16), 64},
        {"llama", "rope_scaling", "\"type\":\"linear\",\"factor\":1", 32},
        {"llama", "rope_scaling", "\"type\":\"dynamic\",\"factor\":4", 32},
        {"llama", "rope_scaling", LLAMA3 WITHIN(16), 32},
        {"gemma3_text", "rope_scaling", "\"rope_type\":\"linear\",\"factor\":8", 32}, /* which has the factor in it */
    };
    struct st_model_config c;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_ok(parse(&c, rows[i].model, "", rows[i].key, rows[i].scaling));
        if (c.context != rows[i].context)
            fail_msg("%s {%s}: context %u, not %u", rows[i].model, rows[i].scaling, c.context, rows[i].context);
    }
}

TEST(test_what_4_and_5_compute_differently_is_refused)
{
#define IN_IT     "\"original_max_position_embeddings\" of this type of rotary scaling must be in it, not beside it"
#define BESIDE_IT "\"original_max_position_embeddings\" of this type of rotary scaling must be beside it, not in it"
#define DIFFERS   "\"original_max_position_embeddings\" differs from the one in the rotary scaling"
#define FACTOR    "\"factor\" of the rotary scaling is not max_position_embeddings over"
    static const struct {
        const char *model, *beside, *key, *scaling, *says;
    } rows[] = {
        {"llama", BESIDE(16), "rope_scaling", LLAMA3 WITHIN(8), DIFFERS},
        {"llama", BESIDE(16), "rope_parameters", LLAMA3 WITHIN(8), DIFFERS},
        {"llama", BESIDE(16), "rope_scaling", LLAMA3, "\"original_max_position_embeddings\""},
        {"llama", BESIDE(16), "rope_scaling", YARN WITHIN(8), DIFFERS},
        {"llama", BESIDE(16), "rope_scaling", YARN, IN_IT},
        {"llama", BESIDE(16), "rope_scaling", LONGROPE WITHIN(8), DIFFERS},
        {"llama", "", "rope_scaling", LONGROPE WITHIN(16) ",\"factor\":2", BESIDE_IT},
        {"phi3", "", "rope_scaling", LONGROPE WITHIN(16), BESIDE_IT},
        {"phi3", "", "rope_parameters", LONGROPE WITHIN(16), BESIDE_IT}, /* 5 takes the family's */
        {"llama", BESIDE(8), "rope_scaling", LONGROPE ",\"factor\":3", FACTOR},
        {"llama", BESIDE(32), "rope_scaling", LONGROPE ",\"factor\":3", FACTOR},
        {"phi3", BESIDE(8), "rope_scaling", LONGROPE ",\"factor\":3", FACTOR},
        {"phi3", "", "rope_scaling", LONGROPE ",\"factor\":1", FACTOR},
    };
    struct st_model_config c;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(parse(&c, rows[i].model, rows[i].beside, rows[i].key, rows[i].scaling), STRATA_E_INPUT, rows[i].says);
}
