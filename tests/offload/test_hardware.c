/* Machines by the names of their parts: what names are understood, what machines they make, and what one more of a part is. */
#include "core/base/error.h"
#include "core/json/json.h"
#include "offload/machine/hardware.h"
#include "offload/machine/machine.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB (UINT64_C(1) << 30)

static strata_status parse(struct st_hardware *h, const char *gpu, const char *ram, const char *const *drives, uint32_t count)
{
    return st_hardware_parse(h, &(struct st_hardware_choice){.gpu = gpu, .ram = ram, .drives = drives, .drive_count = count});
}

static struct st_machine machine_of(const char *gpu, const char *ram, const char *drive)
{
    struct st_hardware h;
    struct st_machine m;

    assert_int_equal(parse(&h, gpu, ram, &drive, drive != NULL), STRATA_OK);
    st_hardware_machine(&m, &h);
    return m;
}

static bool near(double a, double b, double part)
{
    return fabs(a - b) <= part * b;
}

/* The names say what the file says, which others measured. */
TEST(names_make_the_machine_of_a_file)
{
    const struct st_machine m = machine_of("4090", "128GB:2xDDR5-5600", "5.6GB/s:2TBx2");
    struct st_machine file;

    assert_int_equal(st_machine_read(&file, "tests/machines/card-24gb.json"), STRATA_OK);
    assert_int_equal(m.capacity.bytes[STRATA_TIER_DEVICE], file.capacity.bytes[STRATA_TIER_DEVICE]);
    assert_true(near((double)m.capacity.bytes[STRATA_TIER_HOST], (double)file.capacity.bytes[STRATA_TIER_HOST], 0.02));
    assert_true(near((double)m.capacity.bytes[STRATA_TIER_NVME], (double)file.capacity.bytes[STRATA_TIER_NVME], 0.001));
    assert_int_equal(m.capacity.workers, file.capacity.workers);
    assert_false(m.capacity.device_is_host);
    assert_int_equal(m.rates.drives, file.rates.drives);
    assert_true(near(m.rates.matmul_flops, file.rates.matmul_flops, 0.01));
    assert_true(near(m.rates.block_flops, file.rates.block_flops, 0.01));
    assert_true(near(m.rates.memory, file.rates.memory, 0.02));
    assert_true(near(m.rates.upload, file.rates.upload, 1e-9) && near(m.rates.download, file.rates.download, 1e-9));
    assert_true(near(m.rates.read, file.rates.read, 1e-9));
    assert_true(near(m.rates.write, file.rates.write, 0.03));
    assert_true(near(m.rates.mixed, file.rates.mixed, 0.15));
    assert_true(near(m.rates.update, file.rates.update, 0.01));
    assert_true(near(m.rates.checksum, file.rates.checksum, 1e-9));
}

TEST(every_card_is_sane)
{
    uint32_t row = 0;

    for (const char *name; (name = st_hardware_gpu_name(row)) != NULL; row++) {
        const struct st_machine m = machine_of(name, "64GB", "gen4:2TB");
        struct st_hardware h;

        assert_int_equal(parse(&h, name, NULL, NULL, 0), STRATA_OK);
        assert_int_equal(h.gpu, row);
        assert_true(m.capacity.bytes[STRATA_TIER_DEVICE] >= 4 * GIB && m.capacity.bytes[STRATA_TIER_DEVICE] <= 192 * GIB);
        assert_true(m.rates.matmul_flops >= 9e12 && m.rates.matmul_flops < 1e15);
        assert_true(m.rates.block_flops <= m.rates.matmul_flops && m.rates.block_flops >= m.rates.matmul_flops / 2);
        assert_true(m.rates.memory >= 8 * m.rates.upload && m.rates.memory < 8e12);
        assert_true(m.rates.upload >= 10e9 && m.rates.upload < 63e9);
        assert_true(m.rates.link_node <= 0 || m.rates.link_node > m.rates.upload);
    }
    assert_true(row >= 60 && row <= 100);
}

static void check_name(const char *name, const char *card)
{
    struct st_hardware h;

    if (parse(&h, name, NULL, NULL, 0) != STRATA_OK || strcmp(st_hardware_gpu_name(h.gpu), card) != 0)
        fail_msg("%s of the row %s finds another card", name, card);
}

/* The rows of share/strata/hardware.json against each other: names that people could mean are one card's alone. */
TEST(rows_are_consistent)
{
    const st_json *cards;
    size_t bytes = 0;
    char *text = read_file("share/strata/hardware.json", &bytes);
    st_json *root;
    double written;

    assert_int_equal(st_json_parse(&root, text, bytes, "hardware.json"), STRATA_OK);
    cards = st_json_get(root, "cards");
    for (const st_json *c = st_json_first(cards); c != NULL; c = st_json_next(c)) {
        const char *name = json_text(c, "name");
        const double usable = json_number(c, "usable_mib"), built_in = json_number(c, "memory_gb") * 1024;

        if (usable > built_in || usable < 0.66 * built_in || strlen(json_text(c, "source")) < 8 ||
            strlen(json_text(c, "date")) != 7 || json_number(c, "bf16_tflops") / json_number(c, "memory_gbs") > 0.6)
            fail_msg("%s: memory, source, date or rates are wrong", name);
        check_name(name, name);
        for (const st_json *a = st_json_first(st_json_get(c, "aliases")); a != NULL; a = st_json_next(a))
            check_name(st_json_string(a), name);
    }
    for (const st_json *d = st_json_first(st_json_get(root, "drives")); d != NULL; d = st_json_next(d))
        assert_true(strlen(json_text(d, "source")) > 0);
    written = json_number(st_json_get(root, "endurance"), "tb_written_per_tb");
    assert_true(near(st_hardware_writes_endured(), written, 1e-9));
    assert_string_equal(st_hardware_endurance_source(), json_text(st_json_get(root, "endurance"), "source"));
    st_json_free(root);
    free(text);
}

TEST(cards_are_found_as_people_write_them)
{
    static const char *const names[][2] = {
        {"4090", "rtx-4090"},
        {"RTX 4090", "rtx-4090"},
        {"NVIDIA GeForce RTX 4090", "rtx-4090"},
        {"rtx4090", "rtx-4090"},
        {"4090 24GB", "rtx-4090"},
        {"4060 Ti", "rtx-4060-ti"},
        {"4060Ti-16GB", "rtx-4060-ti"},
        {"RTX 3060 12GB", "rtx-3060"},
        {"RTX 4060 Laptop", "rtx-4060-laptop"},
        {"4060 mobile", "rtx-4060-laptop"},
        {"4060 laptop 8GB", "rtx-4060-laptop"},
        {"A6000", "rtx-a6000"},
        {"6000 Ada", "rtx-6000-ada"},
        {"A100", "a100-80gb"},
        {"A100-80GB", "a100-80gb"},
        {"a100 80", "a100-80gb"},
        {"A100 40GB", "a100-40gb"},
        {"a100-40", "a100-40gb"},
        {"H100", "h100-sxm"},
        {"NVIDIA H100 PCIe", "h100-pcie"},
        {"NVIDIA H100 80GB HBM3", "h100-sxm"},
        {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
        {"NVIDIA A100-SXM4-40GB", "a100-40gb"},
        {"NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"},
        {"NVIDIA GeForce RTX 3080 Ti Laptop GPU", "rtx-3080-ti-laptop"},
        {"A10G", "a10g"},
        {"A10 24G", "a10"},
        {"3080 10G", "rtx-3080"},
        {"4070 Ti SUPER 16 GiB", "rtx-4070-ti-super"},
        {"h100-sxm-80gb", "h100-sxm"},
        {"L40S", "l40s"},
        {"Tesla T4", "t4"},
        {"NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"},
        {"2060 12GB", "rtx-2060-12gb"},
        {"Quadro RTX 5000", "quadro-rtx-5000"},
        {"3080 12GB", "rtx-3080-12gb"},
        {"3080 10GB", "rtx-3080"},
        {"4060 Ti 8GB", "rtx-4060-ti-8gb"},
        {"RTX 4090 Laptop GPU", "rtx-4090-laptop"},
        {"5060ti 16", "rtx-5060-ti"},
        {"4090:gen3", "rtx-4090"},
    };
    struct st_hardware h;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(parse(&h, names[i][0], NULL, NULL, 0), STRATA_OK);
        assert_string_equal(st_hardware_gpu_name(h.gpu), names[i][1]);
    }
}

TEST(an_unknown_card_is_answered)
{
    static const char *const unknown[] = {
        "4091",        "GTX 1080",
        "V100",        "A100 24GB",
        "GeForce",     "rtx",
        "RX 7900 XTX", "x",
        "----",        "a name that is longer than any that a card has ever had and goes on for a while yet"};
    struct st_hardware h;

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        assert_int_equal(parse(&h, unknown[i], NULL, NULL, 0), STRATA_E_INVAL);
        assert_non_null(strstr(strata_last_error(), "nearest: "));
        assert_non_null(strstr(strata_last_error(), "machine.file"));
    }
    assert_int_equal(parse(&h, "4091", NULL, NULL, 0), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "rtx-4090"));
    assert_int_equal(parse(&h, NULL, "64GB", NULL, 0), STRATA_E_INVAL);
}

TEST(memory_is_read)
{
    static const struct {
        const char *text;
        uint64_t gib;
        uint32_t channels, ddr, mts;
    } good[] = {{"128GB", 128, 2, 5, 5600},
                {"128GB:2xDDR5-5600", 128, 2, 5, 5600},
                {"64G:2XDDR4-3200", 64, 2, 4, 3200},
                {"1.5TB:8xddr5-4800", 1536, 8, 5, 4800},
                {"512GiB:12xDDR5-6400", 512, 12, 5, 6400}};
    static const char *const bad[] = {"128",
                                      "GB",
                                      "0GB",
                                      "1GB",
                                      "5TB",
                                      "128GB:",
                                      "128GB:DDR5",
                                      "128GB:0xDDR5-5600",
                                      "128GB:25xDDR5-5600",
                                      "128GB:2xDDR6-5600",
                                      "128GB:2xDDR5-10",
                                      "128GB:2xDDR5-5600x",
                                      "1.2.3GB",
                                      "-8GB",
                                      "128KB",
                                      "128GB 2xDDR5-5600",
                                      "128GB:2.5xDDR5-5600",
                                      "99999999999999999999999999GB"};
    struct st_hardware h;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(parse(&h, "4090", good[i].text, NULL, 0), STRATA_OK);
        assert_int_equal(h.ram_bytes, good[i].gib * GIB);
        assert_int_equal(h.ram_channels, good[i].channels);
        assert_int_equal(h.ram_ddr, good[i].ddr);
        assert_int_equal(h.ram_mts, good[i].mts);
        assert_int_equal(h.ram_speed_assumed, strchr(good[i].text, ':') == NULL);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(&h, "4090", bad[i], NULL, 0), STRATA_E_INVAL);
        assert_non_null(strstr(strata_last_error(), bad[i]));
    }
    assert_int_equal(parse(&h, "4090", NULL, NULL, 0), STRATA_OK);
    assert_true(h.ram_size_assumed && h.ram_speed_assumed);
}

/* Rate of memory, and so of updates, is that of its channels. */
TEST(channels_make_updates_faster)
{
    const struct st_machine two = machine_of("4090", "128GB:2xDDR5-5600", NULL),
                            eight = machine_of("4090", "128GB:8xDDR5-5600", NULL),
                            old = machine_of("4090", "128GB:2xDDR4-2800", NULL);

    assert_true(near(eight.rates.update, 4 * two.rates.update, 1e-9));
    assert_true(near(old.rates.update, two.rates.update / 2, 1e-9));
    assert_true(eight.capacity.workers == 4 * two.capacity.workers);
}

TEST(drives_are_read)
{
    static const char *const bad[] = {"7GB/s",        "2TB",         "7GB/s:",       ":2TB",         "7GB/s:2TBx", "7GB/s:2TBx0",
                                      "7GB/s:2TBx65", "101GB/s:2TB", "7GB/s:1001TB", "gen6:2TB",     "7:2",        "7GB/s:2TB x2",
                                      "0GB/s:2TB",    "7GB/s:0TB",   "gen4",         "7GB/s:2TBx1.5"};
    static const char *const several[] = {"7GB/s:2TBx63", "gen4:2TB", "sata:1TB"};
    static const char *const mixed[] = {"none", "gen4:2TB"};
    struct st_hardware h;
    const char *text = "none";

    assert_int_equal(parse(&h, "4090", NULL, &text, 1), STRATA_OK);
    assert_int_equal(h.drive_count, 0);
    text = "3500MB/s:1TBx3";
    assert_int_equal(parse(&h, "4090", NULL, &text, 1), STRATA_OK);
    assert_int_equal(h.drive_count, 3);
    assert_true(near(h.drives[2].read, 3.5e9, 1e-9));
    assert_int_equal(h.drives[2].bytes, UINT64_C(1000000000000));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(&h, "4090", NULL, &bad[i], 1), STRATA_E_INVAL);
        assert_non_null(strstr(strata_last_error(), bad[i]));
    }
    assert_int_equal(parse(&h, "4090", NULL, several, 2), STRATA_OK);
    assert_int_equal(h.drive_count, ST_HARDWARE_DRIVES_MAX);
    assert_int_equal(parse(&h, "4090", NULL, several, 3), STRATA_E_INVAL);
    assert_int_equal(parse(&h, "4090", NULL, mixed, 2), STRATA_E_INVAL);
}

/* A slow drive of the same size holds less of a swap than a fast one, so that both are done at the same time. */
TEST(unlike_drives_are_full_together)
{
    static const char *const drives[] = {"2GB/s:2TB", "6GB/s:2TB", "2GB/s:2TB"};
    struct st_hardware h;
    struct st_machine m;

    for (size_t first = 0; first < 2; first++) {
        assert_int_equal(parse(&h, "4090", NULL, drives + first, 2), STRATA_OK);
        st_hardware_machine(&m, &h);
        assert_true(near(m.rates.read, 8e9, 1e-9));
        assert_true(near((double)m.capacity.bytes[STRATA_TIER_NVME], 0.9 * 2e12 * 8 / 6, 1e-6));
    }
}

TEST(one_more_of_each)
{
    struct st_hardware h;
    struct st_machine before, after;
    uint32_t cards = 0;

    assert_int_equal(parse(&h, "3060", "64GB", NULL, 0), STRATA_OK);
    for (st_hardware_machine(&before, &h); st_hardware_more_gpu(&h); before = after, cards++) {
        st_hardware_machine(&after, &h);
        assert_true(after.capacity.bytes[STRATA_TIER_DEVICE] > before.capacity.bytes[STRATA_TIER_DEVICE]);
        assert_true(after.rates.block_flops >= before.rates.block_flops);
    }
    assert_string_equal(st_hardware_gpu_name(h.gpu), "h200");
    assert_true(cards >= 4);

    assert_true(st_hardware_more_ram(&h));
    assert_int_equal(h.ram_bytes, 128 * GIB);
    st_hardware_machine(&after, &h);
    assert_true(after.capacity.bytes[STRATA_TIER_HOST] > before.capacity.bytes[STRATA_TIER_HOST] * 3 / 2);
    assert_true(near(after.rates.update, before.rates.update, 1e-9));
    for (h.ram_bytes = 4096 * GIB; st_hardware_more_ram(&h);)
        fail_msg("more than 4 TiB");

    assert_int_equal(after.capacity.bytes[STRATA_TIER_NVME], 0);
    assert_true(st_hardware_more_drive(&h) && st_hardware_more_drive(&h));
    st_hardware_machine(&after, &h);
    assert_int_equal(after.rates.drives, 2);
    assert_true(near(after.rates.read, 2 * h.drives[0].read, 1e-9));
    while (st_hardware_more_drive(&h))
        ;
    assert_int_equal(h.drive_count, ST_HARDWARE_DRIVES_MAX);
}

/* A card runs at the slower of its own generation and lanes and its slot's. */
TEST(a_slot_may_be_slower)
{
    static const struct {
        const char *gpu;
        double gbs;
    } slots[] = {{"4090", 25},          {"4090:gen3", 12.48},    {"4090:gen5", 25},    {"4090:gen4x8", 12.5},
                 {"4090:GEN3x4", 3.12}, {"4060:gen3", 6.24},     {"5060", 27.5},       {"5060:gen4", 12.5},
                 {"2080:gen4", 12.48},  {"2080:gen4x16", 12.48}, {"3060:gen3x1", 0.78}};
    static const char *const bad[] = {"4090:",       "4090:gen6",    "4090:gen", "4090:3",       "4090:gen3x3", "4090:gen3x32",
                                      "4090:gen3x0", "4090:gen3x8x", "4090:x8",  "4090:gen3 x8", "4090:gen31"};
    struct st_hardware h;

    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
        const struct st_machine m = machine_of(slots[i].gpu, NULL, NULL);

        if (!near(m.rates.upload, slots[i].gbs * 1e9, 1e-6) || !near(m.rates.download, slots[i].gbs * 1e9, 1e-6))
            fail_msg("%s: %g GB/s", slots[i].gpu, m.rates.upload * 1e-9);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(parse(&h, bad[i], NULL, NULL, 0), STRATA_E_INVAL);
        if (strstr(strata_last_error(), "3060:gen3x8") == NULL)
            fail_msg("%s: %s", bad[i], strata_last_error());
    }
}

/* GPUs of capability 7.5 compute in fp16; a better card than another in bf16 computes in that, and is no laptop. */
TEST(old_cards_have_no_bf16)
{
    struct st_hardware h;

    assert_true(machine_of("T4", NULL, NULL).capacity.lacks_bf16);
    assert_true(machine_of("2080 Ti", NULL, NULL).capacity.lacks_bf16);
    assert_false(machine_of("3050", NULL, NULL).capacity.lacks_bf16);
    assert_int_equal(parse(&h, "3050", NULL, NULL, 0), STRATA_OK);
    while (st_hardware_more_gpu(&h)) {
        struct st_machine m;

        st_hardware_machine(&m, &h);
        assert_false(m.capacity.lacks_bf16);
        assert_null(strstr(st_hardware_gpu_name(h.gpu), "laptop"));
    }
}
