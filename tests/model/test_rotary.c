/* tests/model/test_rotary.c - tables of rotary positions against their definition, with every kind of scaling. */
#include "model/layout.h"
#include "model_fixture.h"
#include <math.h>

/* Angles against their definition; llama3 scaling leaves fast pairs, divides slow ones and mixes between. */
TEST(test_rotary_table)
{
    struct st_model_config c = tiny_llama_config();
    float plain[16 * 8], scaled[16 * 8];
    double turns;

    c.rotary_dim = 8;
    st_rotary_table(plain, &c, 16, false);
    for (uint32_t p = 0; p < 16; p++) {
        for (uint32_t i = 0; i < 4; i++) {
            const double angle = p * pow(10000.0, -2.0 * i / 8.0);

            assert_true(plain[(p * 4 + i) * 2] == (float)cos(angle));
            assert_true(plain[(p * 4 + i) * 2 + 1] == (float)sin(angle));
        }
    }
    c.rope_type = ST_ROPE_LLAMA3;
    c.rope_factor = 8.0f;
    c.rope_low = 1.0f;
    c.rope_high = 4.0f;
    c.rope_original = 128; /* wavelengths 6.3, 63, 628, 6283: as it is, mixed, divided, divided */
    st_rotary_table(scaled, &c, 16, false);
    turns = 128.0 * 0.1 / (2.0 * acos(-1.0));
    for (uint32_t p = 0; p < 16; p++) {
        const double smooth = (turns - 1.0) / 3.0, mixed = ((1.0 - smooth) / 8.0 + smooth) * 0.1;

        assert_true(scaled[p * 8] == plain[p * 8]);
        assert_true(fabs((double)scaled[p * 8 + 3] - sin(p * mixed)) < 1e-6);
        assert_true(fabs((double)scaled[p * 8 + 5] - sin(p * 0.01 / 8.0)) < 1e-6);
        assert_true(fabs((double)scaled[p * 8 + 7] - sin(p * 0.001 / 8.0)) < 1e-6);
    }
}

/* The second list is for sequences longer than the original context, not as long. */
TEST(test_rotary_lists_change_past_the_original_context)
{
    struct st_model_config c = tiny_llama_config();
    float table[17 * 8];

    c.rotary_dim = 8;
    c.rope_type = ST_ROPE_LONGROPE;
    c.rope_original = 16;
    for (uint32_t i = 0; i < 4; i++) {
        c.rope_short[i] = 2.0f;
        c.rope_long[i] = 4.0f;
    }
    for (uint32_t positions = 15; positions <= 17; positions++) {
        st_rotary_table(table, &c, positions, false);
        assert_true(table[8 + 1] == (float)sin(positions > 16 ? 1.0 / 4.0 : 1.0 / 2.0));
    }
}

/* A context so short that its first pair turns less than once: the ramp of yarn is a step behind that pair. */
TEST(test_rotary_ramp_without_a_width)
{
    struct st_model_config c = tiny_llama_config();
    float table[3 * 8];

    c.rotary_dim = 8;
    c.rope_type = ST_ROPE_YARN;
    c.rope_factor = 4.0f;
    c.rope_low = 1.0f;
    c.rope_high = 32.0f;
    c.rope_original = 4;
    c.rope_whole_pairs = true;
    st_rotary_table(table, &c, 3, false);
    for (uint32_t p = 0; p < 3; p++)
        for (uint32_t i = 0; i < 4; i++)
            assert_true(fabs((double)table[(p * 4 + i) * 2 + 1] - sin(p * pow(10000.0, -0.25 * i) / (i > 0 ? 4.0 : 1.0))) < 1e-6);
}

/* A table of sliding layers has a base of its own, and nothing of what scales the other: factors of pairs or of cos and sin. */
TEST(test_rotary_table_of_sliding_layers)
{
    struct st_model_config c = tiny_llama_config();
    float local[16 * 8], global[16 * 8];

    c.rotary_dim = 8;
    c.rope_local_base = 500.0f;
    c.rope_factor = 8.0f;
    c.rope_low = 1.0f;
    c.rope_high = 32.0f;
    c.rope_original = 128;
    c.rope_attention = 1.25f;
    for (uint32_t i = 0; i < 4; i++)
        c.rope_short[i] = c.rope_long[i] = 2.0f;
    for (c.rope_type = ST_ROPE_DEFAULT; c.rope_type <= ST_ROPE_LONGROPE; c.rope_type++) {
        st_rotary_table(local, &c, 16, true);
        st_rotary_table(global, &c, 16, false);
        assert_true(global[0] == 1.25f && global[1] == 0.0f);
        for (uint32_t p = 0; p < 16; p++) {
            for (uint32_t i = 0; i < 4; i++) {
                const double angle = p * pow(500.0, -2.0 * i / 8.0);

                assert_true(local[(p * 4 + i) * 2] == (float)cos(angle));
                assert_true(local[(p * 4 + i) * 2 + 1] == (float)sin(angle));
            }
        }
    }
}
