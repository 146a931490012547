/* tests/model/test_hf_names.c - names of tensors in files, of models alone and of text models within others. */
#include "model/family.h"
#include "model/hf/hf_names_internal.h"
#include "model_fixture.h"

#include <stdio.h>

static struct st_model_config config_of(const char *wrapper)
{
    struct st_model_config c = tiny_llama_config();

    c.wrapper = wrapper != NULL ? st_wrapper_named(wrapper) : NULL;
    assert_true(wrapper == NULL || c.wrapper != NULL);
    return c;
}

#define TEXT "model.language_model."

TEST(test_names_in_files)
{
    static const struct {
        const char *wrapper, *file, *model; /* NULL: beside the text model */
    } rows[] = {
        {NULL, "model.norm.weight", "model.norm.weight"},
        {NULL, "norm.weight", "model.norm.weight"},
        {NULL, "lm_head.weight", "lm_head.weight"},
        {NULL, "language_model.model.norm.weight", "model.language_model.model.norm.weight"}, /* none of its tensors */
        {"gemma3", "language_model.model.layers.1.mlp.up_proj.weight", TEXT "layers.1.mlp.up_proj.weight"},
        {"gemma3", "model.language_model.norm.weight", TEXT "norm.weight"},
        {"gemma3", "language_model.embed_tokens.weight", TEXT "embed_tokens.weight"},
        {"llava", "language_model.lm_head.weight", "lm_head.weight"},
        {"llava", "lm_head.weight", "lm_head.weight"},
        {"llava_next", "image_newline", NULL},
        {"mistral3", "multi_modal_projector.norm.weight", NULL},
        {"mistral3", "model.vision_tower.transformer.layers.0.attention.q_proj.weight", NULL},
        {"qwen2_vl", "model.layers.0.self_attn.q_proj.bias", TEXT "layers.0.self_attn.q_proj.bias"},
        {"qwen2_vl", "visual.blocks.0.norm1.weight", NULL},
        {"qwen3_vl", "model.visual.pos_embed.weight", NULL},
        {"smolvlm", "model.text_model.layers.0.mlp.up_proj.weight", "model.text_model.layers.0.mlp.up_proj.weight"},
        {"smolvlm", "model.vision_model.encoder.layers.0.mlp.fc1.weight", NULL},
        {"idefics3", "model.connector.modality_projection.proj.weight", NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_model_config c = config_of(rows[i].wrapper);
        char name[ST_HF_NAME_BYTES];

        assert_int_equal(st_hf_name_is_beside(&c, rows[i].file), rows[i].model == NULL);
        if (rows[i].model == NULL)
            continue;
        st_hf_name_in_model(name, &c, rows[i].file);
        assert_string_equal(name, rows[i].model);
        assert_int_equal(st_hf_name_is_head(&c, rows[i].file), strcmp(rows[i].model, "lm_head.weight") == 0);
    }
}

/* Older names of each model are read as those that it has. */
TEST(test_older_names_are_read_back)
{
    static const char *const names[] = {"model.embed_tokens.weight", "model.layers.3.self_attn.q_proj.bias", "model.norm.weight",
                                        "lm_head.weight"};
    static const char *const wrappers[] = {"gemma3", "qwen2_vl", "qwen3_vl", "smolvlm"};

    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++) {
        const struct st_model_config c = config_of(wrappers[i]);

        for (size_t k = 0; k < 2 * sizeof(names) / sizeof(names[0]); k++) {
            char name[ST_HF_NAME_BYTES], file[ST_HF_NAME_BYTES], back[ST_HF_NAME_BYTES];

            st_model_tensor_name(name, &c, names[k / 2]);
            st_hf_name_in_file(file, &c, name, k % 2 != 0);
            st_hf_name_in_model(back, &c, file);
            assert_string_equal(back, name);
        }
    }
}

TEST(test_adapters_own_names_are_left_out)
{
#define PEFT "base_model.model."
    static const struct {
        const char *wrapper, *file, *name;
    } rows[] = {
        {NULL, PEFT "model.layers.0.mlp.up_proj.lora_A.weight", PEFT "model.layers.0.mlp.up_proj.lora_A.weight"},
        {NULL, PEFT "model.layers.0.mlp.up_proj.lora_A.default.weight", PEFT "model.layers.0.mlp.up_proj.lora_A.weight"},
        {NULL, PEFT "model.layers.0.mlp.up_proj.lora_B.a_b.weight", PEFT "model.layers.0.mlp.up_proj.lora_B.weight"},
        {NULL, PEFT "lm_head.modules_to_save.default.weight", PEFT "lm_head.weight"},
        {NULL, PEFT "model.norm.modules_to_save.weight", PEFT "model.norm.weight"},
        {"gemma3", PEFT "language_model.model.layers.0.mlp.up_proj.lora_A.default.weight",
         PEFT TEXT "layers.0.mlp.up_proj.lora_A.weight"},
        {"gemma3", PEFT "model.layers.0.mlp.up_proj.lora_A.weight", PEFT TEXT "layers.0.mlp.up_proj.lora_A.weight"},
        {"llava", PEFT "language_model.lm_head.modules_to_save.default.weight", PEFT "lm_head.weight"},
        {"smolvlm", PEFT TEXT "norm.modules_to_save.x.weight", PEFT "model.text_model.norm.weight"},
    };
    char name[128], longest[200];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_model_config c = config_of(rows[i].wrapper);

        st_hf_name_in_adapter(name, sizeof(name), &c, rows[i].file);
        assert_string_equal(name, rows[i].name);
    }
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    st_hf_name_in_adapter(name, sizeof(name), &(struct st_model_config){0}, longest);
    assert_string_equal(name, "");
}
