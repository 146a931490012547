/* offload/machine/hardware.c - reads the names of parts, and makes a machine of them.
 *
 * A data sheet's figures become rates by the table's fractions, so that a plan for a name is as one for a machine file that was
 * measured.  How the constants below were made: tests/machines/README.md. */
#include "core/base/error.h"
#include "core/base/number.h"
#include "core/base/text.h"
#include "core/base/word.h"
#include "offload/device/device.h"
#include "offload/machine/hardware_internal.h"
#include "offload/machine/machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576u

#include "offload/machine/hardware_table.inc"

#define CARD_COUNT       (sizeof(cards) / sizeof(cards[0]))
#define NODE_KIND_COUNT  (sizeof(node_kinds) / sizeof(node_kinds[0]))
#define LINK_KIND_COUNT  (sizeof(link_kinds) / sizeof(link_kinds[0]))
#define DRIVE_KIND_COUNT (sizeof(drive_kinds) / sizeof(drive_kinds[0]))

#define LANES_MOST         16u
#define RAM_ASSUMED        64.0 /* GiB */
#define CHANNELS_ASSUMED   2u
#define DDR_ASSUMED        5u
#define MTS_ASSUMED        5600u
#define RAM_LEAST          4.0    /* GiB, with less a run here has no budget */
#define RAM_MOST           4096.0 /* GiB */
#define CHANNELS_MOST      24u
#define MTS_LEAST          800u
#define MTS_MOST           20000u
#define CHANNEL_BYTES      8.0  /* of a transfer */
#define UPDATE_BYTES       30.0 /* that memory moves for one parameter's update */
#define WORKERS_OF_CHANNEL 8u
#define CHECKSUM_OF_WORKER 15e9
#define DRIVE_WRITES       0.75 /* of the read rate: writes alone, */
#define DRIVE_MIXES        0.75 /* and reads and writes together */
#define DRIVE_USABLE       0.9  /* of the bytes: file systems keep a reserve, and full drives are slow */
#define DRIVE_RATE_MOST    100e9
#define DRIVE_BYTES_MOST   1e15
#define DRIVE_ASSUMED      "gen4:2TB"
#define NEAREST_SHOWN      3u
#define KEY_BYTES          32u
#define TEXT_BYTES         128u /* of a card's name as it is given */

/* --- cards --- */

static void drop_end(char *key, const char *word)
{
    const size_t length = strlen(key), bytes = strlen(word);

    if (length > bytes && strcmp(key + length - bytes, word) == 0)
        key[length - bytes] = '\0';
}

/* Letters and digits alone, without the words that all of a maker's cards have, or with which its drivers end names: "NVIDIA
 * GeForce RTX 4060 Ti" is "4060ti". */
static void make_key(char key[KEY_BYTES], const char *name)
{
    static const char *const common[] = {"nvidia", "geforce", "tesla", "quadro", "rtx"};
    size_t length = 0;

    for (; *name != '\0' && length + 1 < KEY_BYTES; name++)
        if (st_text_is_word(*name))
            key[length++] = st_text_lower(*name);
    key[length] = '\0';
    drop_end(key, "gpu");
    drop_end(key, "generation");
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
        const size_t bytes = strlen(common[i]);

        if (strncmp(key, common[i], bytes) == 0 && key[bytes] != '\0')
            memmove(key, key + bytes, strlen(key + bytes) + 1);
    }
}

/* Whether a key is a card's name, or that with its memory behind it, such as "409024gb". */
static bool key_fits(const char *key, const char *name, uint32_t memory_gb)
{
    static const char *const units[] = {"", "g", "gb", "gib"};
    char own[KEY_BYTES], longer[KEY_BYTES + 16];
    bool fits;

    make_key(own, name);
    fits = strcmp(key, own) == 0;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]) && !fits; i++) {
        snprintf(longer, sizeof(longer), "%s%u%s", own, memory_gb, units[i]);
        fits = strcmp(key, longer) == 0;
    }
    return fits;
}

/* Takes the next of a card's other names.  False: there are no more. */
static bool next_name(char name[KEY_BYTES], const char **aliases)
{
    size_t bytes;

    *aliases += strspn(*aliases, " ");
    bytes = strcspn(*aliases, " ");
    snprintf(name, KEY_BYTES, "%.*s", (int)bytes, *aliases);
    *aliases += bytes;
    return bytes > 0;
}

static bool card_fits(const char *key, const struct st_card *card)
{
    const char *aliases = card->aliases;
    char name[KEY_BYTES];
    bool fits = key_fits(key, card->name, card->memory_gb);

    while (!fits && next_name(name, &aliases))
        fits = key_fits(key, name, card->memory_gb);
    return fits;
}

static uint32_t edits_to(const char *key, const struct st_card *card)
{
    const char *aliases = card->aliases;
    char name[KEY_BYTES], own[KEY_BYTES];
    uint32_t least;

    make_key(own, card->name);
    least = st_word_edits(key, own);
    while (next_name(name, &aliases)) {
        uint32_t edits;

        make_key(own, name);
        edits = st_word_edits(key, own);
        least = edits < least ? edits : least;
    }
    return least;
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
    return st_error_key(
        st_error(STRATA_E_INVAL,
                 "machine.gpu: no card \"%.64s\" (nearest: %s; machine.gpu list shows all, none before the RTX 20 and "
                 "T4); " ST_HARDWARE_ELSEWHERE,
                 name, nearest),
        "machine.gpu");
}

static strata_status find_card(uint32_t *row, const char *name)
{
    char key[KEY_BYTES];

    make_key(key, name);
    for (size_t i = 0; i < CARD_COUNT; i++)
        if (card_fits(key, &cards[i])) {
            *row = (uint32_t)i;
            return STRATA_OK;
        }
    return unknown_card(name, key);
}

const struct st_card *st_hardware_card(uint32_t row)
{
    return row < CARD_COUNT ? &cards[row] : NULL;
}

const struct st_node_kind *st_hardware_node(const struct st_card *card)
{
    char name[KEY_BYTES];

    for (size_t i = 0; i < NODE_KIND_COUNT; i++)
        for (const char *names = node_kinds[i].cards; next_name(name, &names);)
            if (strcmp(name, card->name) == 0)
                return &node_kinds[i];
    return NULL;
}

const struct st_drive_kind *st_hardware_drive_kind(uint32_t row)
{
    return row < DRIVE_KIND_COUNT ? &drive_kinds[row] : NULL;
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

static bool take_count(const char **text, uint32_t least, uint32_t most, uint32_t *out)
{
    const double value = take_number(text);

    if (!(value >= least && value <= most) || value != floor(value))
        return false;
    *out = (uint32_t)value;
    return true;
}

/* --- the card's slot --- */

/* "gen3", or "gen3x8". */
static bool parse_slot(struct st_hardware *h, const char *text)
{
    uint32_t lanes = LANES_MOST;

    for (uint32_t i = 0; i < LINK_KIND_COUNT && h->slot == 0; i++)
        if (take_word(&text, link_kinds[i].name))
            h->slot = i + 1;
    if (h->slot == 0 || (*text != '\0' && (!take_word(&text, "x") || !take_count(&text, 1, LANES_MOST, &lanes))))
        return false;
    h->slot_lanes = lanes;
    return *text == '\0' && (lanes & (lanes - 1)) == 0;
}

static strata_status parse_card(struct st_hardware *h, const char *text)
{
    char name[TEXT_BYTES];
    const char *slot;

    if (text == NULL)
        return st_error_remedy(st_error(STRATA_E_INVAL, "a machine by names needs its card"), "machine.gpu",
                               "machine.gpu NAME (machine.gpu list shows them)");
    slot = strchr(text, ':');
    snprintf(name, sizeof(name), "%.*s", slot != NULL ? (int)(slot - text) : (int)sizeof(name) - 1, text);
    if (slot != NULL && !parse_slot(h, slot + 1))
        return st_error_remedy(st_error(STRATA_E_INVAL, "machine.gpu: \"%.64s\": behind the colon stands the host's PCIe", text),
                               "machine.gpu", "gen3, gen4 or gen5, and lanes, such as 3060:gen3 or 3060:gen3x8");
    return find_card(&h->gpu, name);
}

struct st_card_link st_hardware_link(const struct st_hardware *h)
{
    const struct st_card *card = &cards[h->gpu];
    struct st_card_link link = {card->link, card->lane_gbs, card->lanes};

    if (h->slot > 0 && link_kinds[h->slot - 1].lane_gbs < link.lane_gbs) {
        link.name = link_kinds[h->slot - 1].name;
        link.lane_gbs = link_kinds[h->slot - 1].lane_gbs;
    }
    if (h->slot > 0 && h->slot_lanes < link.lanes)
        link.lanes = h->slot_lanes;
    return link;
}

/* --- memory --- */

static strata_status ram_error(const char *text)
{
    return st_error_remedy(st_error(STRATA_E_INVAL, "machine.ram: \"%.64s\" is not a size, or a size and its channels", text),
                           "machine.ram",
                           "write 128GB or 128GB:2xDDR5-5600 (4 to 4096 GB, DDR3 to DDR5, 1 to %u channels, %u to %u MT/s)",
                           CHANNELS_MOST, MTS_LEAST, MTS_MOST);
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
    return st_error_remedy(
        st_error(STRATA_E_INVAL, "machine.drives: \"%.64s\" is not a rate and a size", text), "machine.drives",
        "write 7GB/s:2TB, gen4:2TB (sata, gen3, gen4, gen5) or 7GB/s:2TBx4 (at most 100 GB/s, 1000 TB, %u drives)",
        ST_HARDWARE_DRIVES_MAX);
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
        return st_error_remedy(st_error(STRATA_E_INVAL, "machine.drives: \"%.64s\" is a rate in bits", text), "machine.drives",
                               "write bytes, an eighth of it, such as 7GB/s:2TB");
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
    const bool none = choice->drive_count == 1 && strcmp(choice->drives[0], "none") == 0;
    struct st_hardware h = {0};
    strata_status st = parse_card(&h, choice->gpu);

    if (st == STRATA_OK)
        st = parse_ram(&h, choice->ram);
    for (uint32_t i = 0; i < choice->drive_count && st == STRATA_OK && !none; i++)
        st = parse_drive(&h, choice->drives[i]);
    if (st == STRATA_OK)
        *out = h;
    return st;
}

/* --- the machine --- */

double st_hardware_ram_rate(const struct st_hardware *h)
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
    const struct st_card *card = &cards[h->gpu];
    const struct st_card_link link = st_hardware_link(h);
    const struct st_node_kind *node = st_hardware_node(card);
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
    m.capacity.lacks_bf16 = card->capability < ST_CAPABILITY_BF16;
    m.capacity.workers = h->ram_channels * WORKERS_OF_CHANNEL;
    r->matmul_flops = card->bf16_tflops * card->matmul * 1e12;
    r->block_flops = card->bf16_tflops * card->block * 1e12;
    r->memory = card->memory_gbs * card->memory * 1e9;
    r->upload = r->download = link.lane_gbs * link.lanes * 1e9;
    r->link_node = card->nvlink_gbs * 1e9;
    if (node != NULL) {
        r->link_nodes = node->network_gbs * 1e9;
        r->node_ranks = node->gpus;
    }
    r->update = st_hardware_ram_rate(h) * ST_HARDWARE_RAM_ATTAINED / UPDATE_BYTES;
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

static bool is_less(const struct st_card *a, const struct st_card *b)
{
    return a->usable_mib != b->usable_mib ? a->usable_mib < b->usable_mib : a->bf16_tflops * a->block < b->bf16_tflops * b->block;
}

/* Laptops are bought whole, and a run in bf16 stays one. */
static bool is_for_sale(const struct st_card *card, const struct st_card *instead_of)
{
    return strstr(card->name, "-laptop") == NULL &&
           (card->capability >= ST_CAPABILITY_BF16 || instead_of->capability < ST_CAPABILITY_BF16);
}

/* The least card of so much memory that computes no slower; NULL: there is none. */
static const struct st_card *find_larger(const struct st_card *from, uint64_t usable_mib)
{
    const struct st_card *best = NULL;

    for (size_t i = 0; i < CARD_COUNT; i++)
        if (is_for_sale(&cards[i], from) && cards[i].usable_mib >= usable_mib &&
            cards[i].bf16_tflops * cards[i].block >= from->bf16_tflops * from->block &&
            (best == NULL || is_less(&cards[i], best)))
            best = &cards[i];
    return best;
}

bool st_hardware_more_gpu(struct st_hardware *h)
{
    const struct st_card *best = find_larger(&cards[h->gpu], (uint64_t)cards[h->gpu].usable_mib + 1);

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

/* --- enough of a part --- */

static bool enough_gpu(char *text, size_t bytes, const struct st_hardware *h, uint64_t needed)
{
    const struct st_card *best = find_larger(&cards[h->gpu], (needed + MIB - 1) / MIB);
    char slot[24] = "";

    if (best == NULL)
        return false;
    if (h->slot > 0)
        snprintf(slot, sizeof(slot), ":%sx%u", link_kinds[h->slot - 1].name, h->slot_lanes);
    snprintf(text, bytes, "machine.gpu %s%s", best->name, slot);
    return true;
}

static bool enough_ram(char *text, size_t bytes, const struct st_hardware *h, uint64_t needed)
{
    uint32_t size = (uint32_t)RAM_LEAST;
    char kind[48] = "";

    while (size <= RAM_MOST && st_machine_host_budget((uint64_t)size << 30, ST_MACHINE_GPU_BYTES) < needed)
        size++;
    if (size > RAM_MOST)
        return false;
    if (!h->ram_speed_assumed)
        snprintf(kind, sizeof(kind), ":%uxDDR%u-%u", h->ram_channels, h->ram_ddr, h->ram_mts);
    snprintf(text, bytes, "machine.ram %uGB%s", size, kind);
    return true;
}

/* All like the first, so that each holds an equal part. */
static bool enough_drives(char *text, size_t bytes, const struct st_hardware *h, uint64_t needed)
{
    const uint32_t count = h->drive_count > 0 ? h->drive_count : 1;
    const double size = ceil((double)needed / DRIVE_USABLE / count * 1e-11) / 10; /* TB */
    struct st_hardware some = *h;

    if (size * 1e12 > DRIVE_BYTES_MOST)
        return false;
    if (some.drive_count == 0)
        (void)st_hardware_more_drive(&some);
    snprintf(text, bytes, "machine.drives %.3gGB/s:%.1fTB", some.drives[0].read * 1e-9, size);
    if (count > 1)
        snprintf(text + strlen(text), bytes - strlen(text), "x%u", count);
    return true;
}

bool st_hardware_enough(char *text, size_t bytes, const struct st_hardware *h, strata_tier tier, uint64_t needed)
{
    return tier == STRATA_TIER_DEVICE ? enough_gpu(text, bytes, h, needed)
           : tier == STRATA_TIER_HOST ? enough_ram(text, bytes, h, needed)
                                      : enough_drives(text, bytes, h, needed);
}

double st_hardware_writes_endured(void)
{
    return WRITES_ENDURED;
}

const char *st_hardware_endurance_source(void)
{
    return ENDURANCE_SOURCE;
}
