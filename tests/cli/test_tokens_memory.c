/* tests/cli/test_tokens_memory.c - tokens are made in the process that trains: it takes no more memory than it says it will,
 * however large a tokenizer is, and however long a row. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/large_tokenizer.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a)   (sizeof(a) / sizeof((a)[0]))
#define LETTERS    20u /* a tokenizer of 168,420 tokens, whose file has 6.5 MB and took 120 as a tree */
#define HIDDEN     16u
#define LONG_BYTES (4u << 20) /* of a row, which is one word: what merges it takes 40 bytes for each */

/* All zero, and a hole in the file. */
static void put_weights(const struct workplace *w, uint32_t vocab)
{
    static const struct {
        const char *name;
        uint32_t rows, columns;
    } tensors[] = {
        {"layers.0.self_attn.q_proj", HIDDEN, HIDDEN},    {"layers.0.self_attn.k_proj", HIDDEN, HIDDEN},
        {"layers.0.self_attn.v_proj", HIDDEN, HIDDEN},    {"layers.0.self_attn.o_proj", HIDDEN, HIDDEN},
        {"layers.0.mlp.gate_proj", HIDDEN, HIDDEN},       {"layers.0.mlp.up_proj", HIDDEN, HIDDEN},
        {"layers.0.mlp.down_proj", HIDDEN, HIDDEN},       {"layers.0.input_layernorm", HIDDEN, 0},
        {"layers.0.post_attention_layernorm", HIDDEN, 0}, {"norm", HIDDEN, 0},
    };
    unsigned long long at = 4ull * vocab * HIDDEN, bytes;
    char *header = NULL, *path;
    size_t length;
    FILE *file = open_memstream(&header, &length);

    assert_non_null(file);
    fprintf(file, "........{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[%u,%u],\"data_offsets\":[0,%llu]}", vocab,
            HIDDEN, at);
    for (size_t i = 0; i < COUNT(tensors); i++, at += bytes) {
        char columns[16] = "";

        bytes = 4ull * tensors[i].rows * (tensors[i].columns > 0 ? tensors[i].columns : 1);
        if (tensors[i].columns > 0)
            snprintf(columns, sizeof(columns), ",%u", tensors[i].columns);
        fprintf(file, ",\"model.%s.weight\":{\"dtype\":\"F32\",\"shape\":[%u%s],\"data_offsets\":[%llu,%llu]}", tensors[i].name,
                tensors[i].rows, columns, at, at + bytes);
    }
    fputs("}", file);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < 8; i++)
        header[i] = (char)((length - 8) >> 8 * i);
    workplace_write(w, "large/model.safetensors", header, length);
    free(header);
    path = workplace_expand(w, "{w}/large/model.safetensors");
    assert_int_equal(truncate(path, (off_t)(length + at)), 0);
    free(path);
}

/* A model with a large tokenizer. */
static void put_large(const struct workplace *w)
{
    const uint32_t vocab = large_tokenizer_tokens(LETTERS, 0);
    char config[512], *path = workplace_expand(w, "{w}/large/tokenizer.json");

    workplace_make_dir(w, "large");
    large_tokenizer_put(path, LETTERS);
    free(path);
    put_weights(w, vocab);
    snprintf(config, sizeof(config),
             "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":%u,\"hidden_size\":%u,"
             "\"intermediate_size\":%u,\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
             "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"torch_dtype\":\"float32\"}",
             vocab, HIDDEN, HIDDEN);
    workplace_write(w, "large/config.json", config, strlen(config));
}

/* Tokens of a row of so many letters are made in the process that trains, which never takes more than it says it will.
 * @param said  whether tokens need more than the run, which a notice says then */
static void check_peak(const struct workplace *w, uint32_t letters, bool said)
{
    char *row = malloc(letters + 16), *from;
    const st_json *summary;
    struct program p;
    st_json *line;

    assert_non_null(row);
    snprintf(row, letters + 16, "{\"text\":\"%0*d\"}\n", (int)letters, 0);
    for (from = row + 9; *from == '0'; from++)
        *from = (char)('a' + (from - row) % 2);
    workplace_write(w, "rows.jsonl", row, strlen(row));
    free(row);
    workplace_run_ok(
        w, &p,
        "train --model {w}/large --data {w}/rows.jsonl --seq-len 8 --max-steps 1 --json --quiet --machine {w}/machine.json "
        "--nvme {w}/nvme --device-memory 32M --set strata.cache=0 --set zero_optimization.stage=3 "
        "--set zero_optimization.offload_optimizer.device=nvme --set zero_optimization.offload_param.device=nvme");
    from = strstr(p.out, "{\"summary\":");
    assert_non_null(from);
    assert_int_equal(st_json_parse(&line, from, strlen(from), "summary"), STRATA_OK);
    summary = st_json_get(line, "summary");
    if (json_number(summary, "peak_rss_bytes") > json_number(summary, "rss_bytes_max"))
        fail_msg("peak %.0f, planned at most %.0f", json_number(summary, "peak_rss_bytes"),
                 json_number(summary, "rss_bytes_max"));
    if ((strstr(p.err, "notice: making the tokens took ") != NULL) != said)
        fail_msg("%s", p.err);
    st_json_free(line);
    program_free(&p);
}

TEST(memory_stays_within_the_plan)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* a sanitizer's own memory is in nobody's plan */
#else
    const struct workplace *w = *state;

    put_large(w);
    check_peak(w, 40, false);
    check_peak(w, LONG_BYTES, true);
    workplace_remove(w, "large");
#endif
}

TEST_GROUP(workplace_setup, workplace_teardown);
