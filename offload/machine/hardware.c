/* offload/machine/hardware.c - reads the names of parts, and makes a machine of them.
 *
 * A data sheet's figures become rates by the table's fractions, so that a plan for a name is as one for a machine file that was
 * measured.  How the constants below were made: tests/machines/README.md. */
#include "offload/machine/hardware.h"
#include "core/base/error.h"
#include "core/base/number.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/text.h"
#include "core/base/word.h"
#include "core/json/json.h"
#include "offload/machine/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576u

struct card {
    const char *name, *title, *alias;
    uint32_t memory_gb, usable_mib;
    double bf16_tflops, memory_gbs;
    const char *link;
    double lane_gbs;
    uint32_t lanes;
    double nvlink_gbs;
    double matmul, block, memory; /* attained of the two rates above */
    const char *source, *date;
};

struct drive_kind {
    const char *name;
    double read_gbs;
};

#include "offload/machine/hardware_table.inc"

#define CARD_COUNT       (sizeof(cards) / sizeof(cards[0]))
#define DRIVE_KIND_COUNT (sizeof(drive_kinds) / sizeof(drive_kinds[0]))

#define RAM_ASSUMED         64.0 /* GiB */
#define CHANNELS_ASSUMED    2u
#define DDR_ASSUMED         5u
#define MTS_ASSUMED         5600u
#define RAM_LEAST           4.0    /* GiB, with less a run here has no budget */
#define RAM_MOST            4096.0 /* GiB */
#define CHANNELS_MOST       24u
#define MTS_LEAST           800u
#define MTS_MOST            20000u
#define CHANNEL_BYTES       8.0         /* of a transfer */
#define RAM_ATTAINED        (2.0 / 3.0) /* 60 of the 89.6 GB/s of two channels of DDR5-5600 */
#define UPDATE_BYTES        30.0        /* that memory moves for one parameter's update */
#define WORKERS_OF_CHANNEL  8u
#define CHECKSUM_OF_WORKER  15e9
#define DRIVE_WRITES        0.75 /* of the read rate: writes alone, */
#define DRIVE_MIXES         0.75 /* and reads and writes together */
#define DRIVE_USABLE        0.9  /* of the bytes: file systems keep a reserve, and full drives are slow */
#define DRIVE_RATE_MOST     100e9
#define DRIVE_BYTES_MOST    1e15
#define DRIVE_ASSUMED       "gen4:2TB"
#define NEAREST_SHOWN       3u
#define KEY_BYTES           32u
#define HOW_TO_WRITE_A_FILE "another machine is described by a file (--machine FILE.json; docs/planning.md, \"Machine files\")"

/* --- cards --- */

/* Letters and digits alone, without the words that all of a maker's cards have: "NVIDIA GeForce RTX 4060 Ti" is "4060ti". */
static void make_key(char key[KEY_BYTES], const char *name)
{
    static const char *const common[] = {"nvidia", "geforce", "tesla", "quadro", "rtx"};
    size_t length = 0;

    for (; *name != '\0' && length + 1 < KEY_BYTES; name++)
        if (st_text_is_word(*name))
            key[length++] = st_text_lower(*name);
    key[length] = '\0';
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
        const size_t bytes = strlen(common[i]);

        if (strncmp(key, common[i], bytes) == 0 && key[bytes] != '\0')
            memmove(key, key + bytes, strlen(key + bytes) + 1);
    }
}

/* Whether a key is a card's name, or that with its memory behind it, such as "409024gb". */
static bool key_fits(const char *key, const char *name, uint32_t memory_gb)
{
    char own[KEY_BYTES], longer[KEY_BYTES + 16];

    make_key(own, name);
    if (own[0] == '\0')
        return false;
    snprintf(longer, sizeof(longer), "%s%ugb", own, memory_gb);
    if (strcmp(key, own) == 0 || strcmp(key, longer) == 0)
        return true;
    longer[strlen(longer) - 2] = '\0';
    return strcmp(key, longer) == 0;
}

static uint32_t edits_to(const char *key, const struct card *card)
{
    char name[KEY_BYTES], alias[KEY_BYTES];
    uint32_t by_name, by_alias;

    make_key(name, card->name);
    make_key(alias, card->alias[0] != '\0' ? card->alias : card->name);
    by_name = st_word_edits(key, name);
    by_alias = st_word_edits(key, alias);
    return by_name < by_alias ? by_name : by_alias;
}

static strata_status unknown_card(const char *name, const char *key)
{
    char nearest[128] = "";
    size_t length = 0;
    uint32_t shown = 0;

    for (uint32_t edits = 0; edits < KEY_BYTES && shown < NEAREST_SHOWN; edits++)
        for (size_t i = 0; i < CARD_COUNT && shown < NEAREST_SHOWN; i++)
            if (edits_to(key, &cards[i]) == edits)
                length +=
                    (size_t)snprintf(nearest + length, sizeof(nearest) - length, "%s%s", shown++ > 0 ? ", " : "", cards[i].name);
    return st_error(STRATA_E_INVAL,
                    "--gpu: no card \"%.64s\" (nearest: %s; --gpu list shows all, which need bf16: none before the RTX 30 and "
                    "A100); " HOW_TO_WRITE_A_FILE,
                    name, nearest);
}

static strata_status parse_card(uint32_t *row, const char *name)
{
    char key[KEY_BYTES];

    if (name == NULL)
        return st_error(STRATA_E_INVAL, "a machine by names needs its card: --gpu NAME (--gpu list shows them)");
    make_key(key, name);
    for (size_t i = 0; i < CARD_COUNT; i++)
        if (key_fits(key, cards[i].name, cards[i].memory_gb) || key_fits(key, cards[i].alias, cards[i].memory_gb)) {
            *row = (uint32_t)i;
            return STRATA_OK;
        }
    return unknown_card(name, key);
}

const char *st_hardware_gpu_name(uint32_t row)
{
    return row < CARD_COUNT ? cards[row].name : NULL;
}

/* --- numbers with units --- */

/* Digits with at most one point; moves *text behind them.  Negative: none are there. */
static double take_number(const char **text)
{
    const size_t length = strspn(*text, "0123456789.");
    char digits[24], *end;
    double value;

    if (length == 0 || length >= sizeof(digits))
        return -1;
    memcpy(digits, *text, length);
    digits[length] = '\0';
    value = st_number_read(digits, &end);
    if (*end != '\0')
        return -1;
    *text += length;
    return value;
}

/* Whether the text goes on with a word, in any case; moves *text behind it. */
static bool take_word(const char **text, const char *word)
{
    const size_t length = strlen(word);

    if (!st_text_begins(*text, word))
        return false;
    *text += length;
    return true;
}

/* A unit of bytes, "TB", "TiB" or "T"; 0: none of them. */
static double take_unit(const char **text, double kilo)
{
    double unit = 0;

    switch (st_text_lower(**text)) {
    case 'm':
        unit = kilo * kilo;
        break;
    case 'g':
        unit = kilo * kilo * kilo;
        break;
    case 't':
        unit = kilo * kilo * kilo * kilo;
        break;
    default:
        return 0;
    }
    ++*text;
    if (!take_word(text, "ib"))
        (void)take_word(text, "b");
    return unit;
}

/* --- memory --- */

static strata_status ram_error(const char *text)
{
    return st_error(STRATA_E_INVAL,
                    "--ram: \"%.64s\" is not a size, or a size and its channels: write 128GB or 128GB:2xDDR5-5600 (4 to 4096 GB, "
                    "DDR3 to DDR5, 1 to %u channels, %u to %u million transfers a second)",
                    text, CHANNELS_MOST, MTS_LEAST, MTS_MOST);
}

static bool take_count(const char **text, uint32_t least, uint32_t most, uint32_t *out)
{
    const double value = take_number(text);

    if (!(value >= least && value <= most) || value != floor(value))
        return false;
    *out = (uint32_t)value;
    return true;
}

/* "2xDDR5-5600". */
static bool parse_channels(struct st_hardware *h, const char *text)
{
    return take_count(&text, 1, CHANNELS_MOST, &h->ram_channels) && take_word(&text, "x") && take_word(&text, "ddr") &&
           take_count(&text, 3, 5, &h->ram_ddr) && take_word(&text, "-") && take_count(&text, MTS_LEAST, MTS_MOST, &h->ram_mts) &&
           *text == '\0';
}

/* Modules hold powers of two: 128GB of them are 128 * 2^30 bytes, however they are written. */
static strata_status parse_ram(struct st_hardware *h, const char *text)
{
    const char *at = text;
    double size = RAM_ASSUMED * GIB, unit;

    h->ram_channels = CHANNELS_ASSUMED;
    h->ram_ddr = DDR_ASSUMED;
    h->ram_mts = MTS_ASSUMED;
    h->ram_size_assumed = text == NULL;
    h->ram_speed_assumed = text == NULL || strchr(text, ':') == NULL;
    if (text != NULL) {
        size = take_number(&at);
        unit = take_unit(&at, 1024);
        size *= unit;
        if (!(size >= RAM_LEAST * GIB && size <= RAM_MOST * GIB) || (*at != '\0' && *at != ':') ||
            (*at == ':' && !parse_channels(h, at + 1)))
            return ram_error(text);
    }
    h->ram_bytes = (uint64_t)size;
    return STRATA_OK;
}

/* --- drives --- */

static strata_status drive_error(const char *text)
{
    return st_error(
        STRATA_E_INVAL,
        "--drive: \"%.64s\" is not a rate and a size: write 7GB/s:2TB, gen4:2TB (sata, gen3, gen4, gen5), or 7GB/s:2TBx4 "
        "for four (at most 100 GB/s and 1000 TB each, %u drives together)",
        text, ST_HARDWARE_DRIVES_MAX);
}

/* "gen4", or "7GB/s". */
static double take_rate(const char **text)
{
    double value, unit;

    for (size_t i = 0; i < DRIVE_KIND_COUNT; i++)
        if (take_word(text, drive_kinds[i].name))
            return drive_kinds[i].read_gbs * 1e9;
    value = take_number(text);
    unit = take_unit(text, 1000);
    (void)take_word(text, "/s");
    return value * unit;
}

/* "7Gb/s" are gigabits, for whoever writes a capital G. */
static bool is_in_bits(const char *text)
{
    const char *end = strstr(text, "b/s");

    return end != NULL && end > text && strchr("KMGT", end[-1]) != NULL;
}

static strata_status parse_drive(struct st_hardware *h, const char *text)
{
    const char *at = text;
    struct st_hardware_drive drive;
    uint32_t count = 1;
    double size;

    if (is_in_bits(text))
        return st_error(STRATA_E_INVAL, "--drive: \"%.64s\" is a rate in bits: write bytes, an eighth of it, such as 7GB/s:2TB",
                        text);
    drive.read = take_rate(&at);
    if (!(drive.read >= 1e6 && drive.read <= DRIVE_RATE_MOST) || !take_word(&at, ":"))
        return drive_error(text);
    size = take_number(&at);
    size *= take_unit(&at, 1000);
    if (!(size >= 1e9 && size <= DRIVE_BYTES_MOST) ||
        (take_word(&at, "x") && !take_count(&at, 1, ST_HARDWARE_DRIVES_MAX, &count)) || *at != '\0' ||
        count > ST_HARDWARE_DRIVES_MAX - h->drive_count)
        return drive_error(text);
    drive.write = drive.read * DRIVE_WRITES;
    drive.mixed = drive.read * DRIVE_MIXES;
    drive.bytes = (uint64_t)size;
    while (count-- > 0)
        h->drives[h->drive_count++] = drive;
    return STRATA_OK;
}

strata_status st_hardware_parse(struct st_hardware *out, const struct st_hardware_choice *choice)
{
    struct st_hardware h = {0};
    strata_status st = parse_card(&h.gpu, choice->gpu);

    if (st == STRATA_OK)
        st = parse_ram(&h, choice->ram);
    for (uint32_t i = 0; i < choice->drive_count && st == STRATA_OK; i++)
        st = parse_drive(&h, choice->drives[i]);
    if (st == STRATA_OK)
        *out = h;
    return st;
}

/* --- the machine --- */

static double ram_rate(const struct st_hardware *h)
{
    return h->ram_channels * CHANNEL_BYTES * h->ram_mts * 1e6;
}

double st_hardware_drive_bytes(const struct st_hardware *h)
{
    double read = 0, bytes = HUGE_VAL;

    for (uint32_t i = 0; i < h->drive_count; i++)
        read += h->drives[i].read;
    for (uint32_t i = 0; i < h->drive_count; i++)
        bytes = fmin(bytes, (double)h->drives[i].bytes * (read / h->drives[i].read));
    return h->drive_count > 0 ? bytes : 0;
}

void st_hardware_machine(struct st_machine *out, const struct st_hardware *h)
{
    const struct card *card = &cards[h->gpu];
    struct st_machine m = {0};
    struct st_rates *r = &m.rates;
    int length;

    length = snprintf(m.name, sizeof(m.name), "%s, %.0f GB of memory, ", card->title, (double)h->ram_bytes / GIB);
    if (h->drive_count > 0)
        snprintf(m.name + length, sizeof(m.name) - (size_t)length, "%u drive%s", h->drive_count, h->drive_count == 1 ? "" : "s");
    else
        snprintf(m.name + length, sizeof(m.name) - (size_t)length, "no drive");
    m.capacity.bytes[STRATA_TIER_DEVICE] = (uint64_t)card->usable_mib * MIB;
    m.capacity.bytes[STRATA_TIER_HOST] = st_machine_host_budget(h->ram_bytes, ST_MACHINE_GPU_BYTES);
    m.capacity.workers = h->ram_channels * WORKERS_OF_CHANNEL;
    r->matmul_flops = card->bf16_tflops * card->matmul * 1e12;
    r->block_flops = card->bf16_tflops * card->block * 1e12;
    r->memory = card->memory_gbs * card->memory * 1e9;
    r->upload = r->download = card->lane_gbs * card->lanes * 1e9;
    r->link_node = card->nvlink_gbs * 1e9;
    r->update = ram_rate(h) * RAM_ATTAINED / UPDATE_BYTES;
    r->checksum = m.capacity.workers * CHECKSUM_OF_WORKER;
    r->drives = h->drive_count;
    for (uint32_t i = 0; i < h->drive_count; i++) {
        r->read += h->drives[i].read;
        r->write += h->drives[i].write;
        r->mixed += h->drives[i].mixed;
    }
    m.capacity.bytes[STRATA_TIER_NVME] = (uint64_t)(st_hardware_drive_bytes(h) * DRIVE_USABLE);
    *out = m;
}

/* --- one more --- */

static bool is_less(const struct card *a, const struct card *b)
{
    return a->usable_mib != b->usable_mib ? a->usable_mib < b->usable_mib : a->bf16_tflops * a->block < b->bf16_tflops * b->block;
}

bool st_hardware_more_gpu(struct st_hardware *h)
{
    const struct card *from = &cards[h->gpu], *best = NULL;

    for (size_t i = 0; i < CARD_COUNT; i++)
        if (cards[i].usable_mib > from->usable_mib && cards[i].bf16_tflops * cards[i].block >= from->bf16_tflops * from->block &&
            (best == NULL || is_less(&cards[i], best)))
            best = &cards[i];
    if (best == NULL)
        return false;
    h->gpu = (uint32_t)(best - cards);
    return true;
}

bool st_hardware_more_ram(struct st_hardware *h)
{
    if ((double)h->ram_bytes * 2 > RAM_MOST * GIB)
        return false;
    h->ram_bytes *= 2;
    return true;
}

bool st_hardware_more_drive(struct st_hardware *h)
{
    if (h->drive_count == ST_HARDWARE_DRIVES_MAX)
        return false;
    if (h->drive_count == 0)
        return parse_drive(h, DRIVE_ASSUMED) == STRATA_OK;
    h->drives[h->drive_count++] = h->drives[0];
    return true;
}

double st_hardware_writes_endured(void)
{
    return WRITES_ENDURED;
}

const char *st_hardware_endurance_source(void)
{
    return ENDURANCE_SOURCE;
}

/* --- text --- */

void st_hardware_ram_text(char *text, size_t bytes, const struct st_hardware *h)
{
    snprintf(text, bytes, "%.4g GB of DDR%u-%u, %u channel%s", (double)h->ram_bytes / GIB, h->ram_ddr, h->ram_mts,
             h->ram_channels, h->ram_channels == 1 ? "" : "s");
}

static bool drives_alike(const struct st_hardware_drive *a, const struct st_hardware_drive *b)
{
    return a->bytes == b->bytes && !(a->read < b->read) && !(a->read > b->read);
}

void st_hardware_drives_text(char *text, size_t bytes, const struct st_hardware *h)
{
    size_t length = 0;

    snprintf(text, bytes, "no drive");
    for (uint32_t i = 0, next; i < h->drive_count && length < bytes; i = next) {
        const struct st_hardware_drive *d = &h->drives[i];

        for (next = i + 1; next < h->drive_count && drives_alike(d, &h->drives[next]); next++)
            ;
        length += (size_t)snprintf(text + length, bytes - length, "%s%u drive%s of %.4g TB, %.3g GB/s", i > 0 ? "; " : "",
                                   next - i, next - i == 1 ? "" : "s", (double)d->bytes * 1e-12, d->read * 1e-9);
    }
}

void st_hardware_print(const struct st_hardware *h, FILE *file)
{
    const struct card *card = &cards[h->gpu];
    struct st_machine m;
    char text[192], size[24];

    st_hardware_machine(&m, h);
    st_print(
        file,
        "machine by names; what no name says is assumed, and a measured one is better (strata info --measure --out FILE):\n");
    st_print(file,
             "  %s: %s of %u GB; %.3g TFLOPS in products, %.3g over a block (%.4g by its data sheet, dense bf16); PCIe %s x%u, "
             "%.3g GB/s; %s, %s\n",
             card->title, st_size_text(size, m.capacity.bytes[STRATA_TIER_DEVICE]), card->memory_gb, m.rates.matmul_flops * 1e-12,
             m.rates.block_flops * 1e-12, card->bf16_tflops, card->link, card->lanes, m.rates.upload * 1e-9, card->source,
             card->date);
    st_hardware_ram_text(text, sizeof(text), h);
    st_print(file, "  %s%s: %s of it; %.3g GB/s attained, an update of %.3g billion parameters a second; %u workers assumed\n",
             text,
             h->ram_size_assumed    ? " (all assumed: --ram SIZE:2xDDR5-5600)"
             : h->ram_speed_assumed ? " (kind and channels assumed)"
                                    : "",
             st_size_text(size, m.capacity.bytes[STRATA_TIER_HOST]), ram_rate(h) * RAM_ATTAINED * 1e-9, m.rates.update * 1e-9,
             m.capacity.workers);
    st_hardware_drives_text(text, sizeof(text), h);
    if (h->drive_count == 0)
        st_print(file, "  %s (--drive 7GB/s:2TB adds one)\n", text);
    else
        st_print(file, "  %s: %s of them; writes at %.3g GB/s and both together at %.3g GB/s assumed\n", text,
                 st_size_text(size, m.capacity.bytes[STRATA_TIER_NVME]), m.rates.write * 1e-9, m.rates.mixed * 1e-9);
}

void st_hardware_list(FILE *file)
{
    st_print(file, "%-18s %8s %8s %10s %10s %12s  %s\n", "card", "memory", "usable", "bf16", "a block", "link", "source");
    st_print(file, "%-18s %8s %8s %10s %10s %12s  %s\n", "", "", "", "TFLOPS", "TFLOPS", "GB/s", "");
    for (size_t i = 0; i < CARD_COUNT; i++) {
        const struct card *c = &cards[i];

        st_print(file, "%-18s %5u GB %4.1f GiB %10.4g %10.3g %4.3g %s x%-2u  %s, %s\n", c->name, c->memory_gb,
                 (double)c->usable_mib / 1024, c->bf16_tflops, c->bf16_tflops * c->block, c->lane_gbs * c->lanes, c->link,
                 c->lanes, c->source, c->date);
    }
    st_print(file, "\ndrives: RATE:SIZE[xN], such as 7GB/s:2TB, or of a kind:");
    for (size_t i = 0; i < DRIVE_KIND_COUNT; i++)
        st_print(file, "%s %s (%.3g GB/s)", i > 0 ? "," : "", drive_kinds[i].name, drive_kinds[i].read_gbs);
    st_print(file, "\nmemory: SIZE[:NxDDRn-SPEED], such as 128GB:2xDDR5-5600\n" HOW_TO_WRITE_A_FILE "\n");
}

void st_hardware_list_json(FILE *file)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_array_open(&w, "cards");
    for (size_t i = 0; i < CARD_COUNT; i++) {
        const struct card *c = &cards[i];

        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "name", c->name);
        st_json_put_string(&w, "title", c->title);
        st_json_put_u64(&w, "memory_bytes", c->memory_gb * (UINT64_C(1) << 30));
        st_json_put_u64(&w, "usable_bytes", c->usable_mib * (UINT64_C(1) << 20));
        st_json_put_double(&w, "bf16_flops", c->bf16_tflops * 1e12);
        st_json_put_double(&w, "block_flops", c->bf16_tflops * c->block * 1e12);
        st_json_put_double(&w, "memory_bytes_per_second", c->memory_gbs * 1e9);
        st_json_put_double(&w, "link_bytes_per_second", c->lane_gbs * c->lanes * 1e9);
        st_json_put_string(&w, "source", c->source);
        st_json_put_string(&w, "date", c->date);
        st_json_object_close(&w);
    }
    st_json_array_close(&w);
    st_json_array_open(&w, "drives");
    for (size_t i = 0; i < DRIVE_KIND_COUNT; i++) {
        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "name", drive_kinds[i].name);
        st_json_put_double(&w, "read_bytes_per_second", drive_kinds[i].read_gbs * 1e9);
        st_json_object_close(&w);
    }
    st_json_array_close(&w);
    st_json_object_close(&w);
    st_json_end_line(&w);
}
