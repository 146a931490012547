/* tests/cli/test_told.c - which options of the program the library's sentences are told with. */
#include "cli/options/told.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

static void expect(const char *sentence, const char *wanted)
{
    char told[CLI_TOLD_BYTES];

    cli_told(told, sizeof(told), sentence);
    assert_string_equal(told, wanted);
}

TEST(test_keys_are_followed_by_their_option)
{
    expect("lower strata.host_memory", "lower strata.host_memory (--host-memory)");
    expect("lower strata.keep_best, strata.keep or strata.lora.",
           "lower strata.keep_best (--keep-best), strata.keep (--keep) or strata.lora (--lora).");
    expect("gradient_clipping 0: train_micro_batch_size_per_gpu",
           "gradient_clipping (--max-grad-norm) 0: train_micro_batch_size_per_gpu (--micro-batch)");
    expect("no adapter (strata.lora): no", "no adapter (strata.lora, --lora): no");
    expect("strata.nvme or nvme_path", "strata.nvme (--nvme) or nvme_path");
}

TEST(test_keys_are_told_once)
{
    expect("strata.save x: name another strata.save", "strata.save (--save) x: name another strata.save");
    expect("--save x: name another strata.save", "--save x: name another strata.save");
    expect("strata.save (command line): no", "strata.save (command line): no");
    expect("--set strata.keep is given twice", "--set strata.keep is given twice");
    expect("say strata.threads=2", "say strata.threads=2");
    expect("set bf16.enabled to false", "set bf16.enabled to false");
    expect("strata.keep is 3 from here on", "strata.keep is 3 from here on");
    expect("it asks for strata.keep = 2", "it asks for strata.keep = 2");
    expect("strata.keep: too large; lower strata.keep", "strata.keep: too large; lower strata.keep (--keep)");
    expect("--keep-best 3: strata.keep", "--keep-best 3: strata.keep (--keep)");
}

TEST(test_members_are_replaced)
{
    expect("use machine.device cpu", "use --device cpu");
    expect("machine.device paced: give machine.file", "--device paced: give --machine");
    expect("give it to strata_data_open_texts().", "give it to --data.");
    expect("lower model.seq_len", "lower --seq-len");
}

TEST(test_other_words_stay)
{
    expect("strata.unknown, strata.saved, xstrata.save", "strata.unknown, strata.saved, xstrata.save");
    expect("/scratch/strata.save, strata.save/x, model.seq_len.txt", "/scratch/strata.save, strata.save/x, model.seq_len.txt");
    expect("a \"strata.save\"", "a \"strata.save\"");
    expect("", "");
}

/* Each pair of the list in docs/config.md is what a sentence would say. */
TEST(test_docs_list_the_options_of_keys)
{
    FILE *file = fopen("docs/config.md", "r");
    char line[4096], key[128], option[128], wanted[300];
    uint32_t pairs = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        for (const char *at = strchr(line, '`'); at != NULL; at = strchr(at + 1, '`'))
            if (sscanf(at, "`%127[a-z_.]` (`%127[a-z-]`)", key, option) == 2) {
                snprintf(wanted, sizeof(wanted), "%s (%s)", key, option);
                expect(key, wanted);
                pairs++;
            }
    fclose(file);
    assert_in_range(pairs, 18, 40);
}

TEST(test_what_has_no_room_is_cut)
{
    char told[16];

    cli_told(told, sizeof(told), "no strata.host_memory here");
    assert_string_equal(told, "no strata.host_");
    cli_told(told, sizeof(told), "0123456789abcdefghi");
    assert_string_equal(told, "0123456789abcde");
}
