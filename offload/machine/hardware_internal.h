/* offload/machine/hardware_internal.h - the table of cards and drives, share/strata/hardware.json, for hardware*.c only. */
#ifndef OFFLOAD_MACHINE_HARDWARE_INTERNAL_H
#define OFFLOAD_MACHINE_HARDWARE_INTERNAL_H

#include "offload/machine/hardware.h"

struct st_card {
    const char *name, *title, *aliases;         /* other names, with spaces between them */
    uint32_t memory_gb, usable_mib, capability; /* 10 * major + minor */
    double bf16_tflops, memory_gbs;
    const char *link;
    double lane_gbs;
    uint32_t lanes;
    double nvlink_gbs;
    double matmul, block, memory; /* attained of the two rates above */
    const char *source, *date;
};

/* A machine of several cards. */
struct st_node_kind {
    const char *cards; /* names, with spaces between them */
    uint32_t gpus;
    double network_gbs; /* each way to other nodes, of all its adapters */
    const char *source;
};

/* A PCIe generation, in ascending order. */
struct st_link_kind {
    const char *name;
    double lane_gbs;
};

/* Of a card in a host. */
struct st_card_link {
    const char *name;
    double lane_gbs;
    uint32_t lanes;
};

struct st_drive_kind {
    const char *name;
    double read_gbs;
};

#define ST_HARDWARE_RAM_ATTAINED (2.0 / 3.0) /* 60 of the 89.6 GB/s of two channels of DDR5-5600 */
#define ST_HARDWARE_ELSEWHERE                                                                                                    \
    "another machine is described by a file (machine.file FILE.json; docs/planning.md, \"Machine files\")"

/* Rows of the tables; NULL past the last. */
const struct st_card *st_hardware_card(uint32_t row);
const struct st_drive_kind *st_hardware_drive_kind(uint32_t row);

/* The machine that a card is sold in; NULL: cards of this kind are put into any. */
const struct st_node_kind *st_hardware_node(const struct st_card *card);

/* The slower of the card's link and its slot's. */
struct st_card_link st_hardware_link(const struct st_hardware *hardware);
/* Bytes per second of all channels of memory, as its modules say. */
double st_hardware_ram_rate(const struct st_hardware *hardware);

#endif
