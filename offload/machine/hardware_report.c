/* offload/machine/hardware_report.c - what is printed of machines by names, and the table of the parts that are known. */
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/json/json.h"
#include "offload/device/device.h"
#include "offload/machine/hardware_internal.h"

#include <stdio.h>

#define GIB 1073741824.0

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

static const char *precision_of(const struct st_card *card)
{
    return card->capability < ST_CAPABILITY_BF16 ? "fp16" : "bf16";
}

void st_hardware_print(const struct st_hardware *h, FILE *file)
{
    const struct st_card *card = st_hardware_card(h->gpu);
    const struct st_card_link link = st_hardware_link(h);
    const struct st_node_kind *node = st_hardware_node(card);
    struct st_machine m;
    char text[192], size[24];

    st_hardware_machine(&m, h);
    st_print_keyed(file, "machine by names; what no name says is assumed, and a measured one is better (strata info info.measure "
                         "info.out FILE):\n");
    st_print(file,
             "  %s: %s of %u GB; %.3g TFLOPS in matmuls, %.3g over a block (%.4g by its data sheet, dense %s); PCIe %s x%u, "
             "%.3g GB/s; %s, %s\n",
             card->title, st_size_text(size, m.capacity.bytes[STRATA_TIER_DEVICE]), card->memory_gb, m.rates.matmul_flops * 1e-12,
             m.rates.block_flops * 1e-12, card->bf16_tflops, precision_of(card), link.name, link.lanes, m.rates.upload * 1e-9,
             card->source, card->date);
    if (node != NULL)
        st_print_keyed(file,
                       "  a node: at most %u of them, %.3g GB/s between two, %.3g GB/s to other nodes (machine.nodes); %s\n",
                       node->gpus, card->nvlink_gbs, node->network_gbs, node->source);
    st_hardware_ram_text(text, sizeof(text), h);
    st_print_keyed(
        file, "  %s%s: %s of it; %.3g GB/s attained, an update of %.3g billion parameters a second; %u workers assumed\n", text,
        h->ram_size_assumed    ? " (all assumed: machine.ram SIZE:2xDDR5-5600)"
        : h->ram_speed_assumed ? " (kind and channels assumed)"
                               : "",
        st_size_text(size, m.capacity.bytes[STRATA_TIER_HOST]), st_hardware_ram_rate(h) * ST_HARDWARE_RAM_ATTAINED * 1e-9,
        m.rates.update * 1e-9, m.capacity.workers);
    st_hardware_drives_text(text, sizeof(text), h);
    if (h->drive_count == 0)
        st_print_keyed(file, "  %s (machine.drives 7GB/s:2TB adds one)\n", text);
    else
        st_print(file, "  %s: %s of them; writes at %.3g GB/s and both together at %.3g GB/s assumed\n", text,
                 st_size_text(size, m.capacity.bytes[STRATA_TIER_NVME]), m.rates.write * 1e-9, m.rates.mixed * 1e-9);
}

void st_hardware_list(FILE *file)
{
    uint32_t row = 0;

    st_print(file, "%-19s %8s %8s %5s %10s %10s %12s  %s\n", "card", "memory", "usable", "", "dense", "a block", "link",
             "source");
    st_print(file, "%-19s %8s %8s %5s %10s %10s %12s  %s\n", "", "", "", "", "TFLOPS", "TFLOPS", "GB/s", "");
    for (const struct st_card *c = st_hardware_card(0); c != NULL; c = st_hardware_card(++row)) {
        st_print(file, "%-19s %5u GB %4.1f GiB %5s %10.4g %10.3g %4.3g %s x%-2u  %s, %s\n", c->name, c->memory_gb,
                 (double)c->usable_mib / 1024, precision_of(c), c->bf16_tflops, c->bf16_tflops * c->block, c->lane_gbs * c->lanes,
                 c->link, c->lanes, c->source, c->date);
    }
    st_print(file, "\ndrives: RATE:SIZE[xN], such as 7GB/s:2TB, or of a kind:");
    row = 0;
    for (const struct st_drive_kind *d = st_hardware_drive_kind(0); d != NULL; d = st_hardware_drive_kind(++row))
        st_print(file, "%s %s (%.3g GB/s)", row > 0 ? "," : "", d->name, d->read_gbs);
    st_print_keyed(file, "\na card in a slower slot: NAME:gen3, NAME:gen4x8\nmemory: SIZE[:NxDDRn-SPEED], such as "
                         "128GB:2xDDR5-5600\n" ST_HARDWARE_ELSEWHERE "\n");
}

void st_hardware_list_json(FILE *file)
{
    struct st_json_writer w;
    uint32_t row = 0;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_array_open(&w, "cards");
    for (const struct st_card *c = st_hardware_card(0); c != NULL; c = st_hardware_card(++row)) {
        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "name", c->name);
        st_json_put_string(&w, "title", c->title);
        st_json_put_u64(&w, "memory_bytes", c->memory_gb * (UINT64_C(1) << 30));
        st_json_put_u64(&w, "usable_bytes", c->usable_mib * (UINT64_C(1) << 20));
        st_json_put_u64(&w, "compute_major", c->capability / 10);
        st_json_put_u64(&w, "compute_minor", c->capability % 10);
        st_json_put_bool(&w, "bf16", c->capability >= ST_CAPABILITY_BF16);
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
    row = 0;
    for (const struct st_drive_kind *d = st_hardware_drive_kind(0); d != NULL; d = st_hardware_drive_kind(++row)) {
        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "name", d->name);
        st_json_put_double(&w, "read_bytes_per_second", d->read_gbs * 1e9);
        st_json_object_close(&w);
    }
    st_json_array_close(&w);
    st_json_object_close(&w);
    st_json_end_line(&w);
}
