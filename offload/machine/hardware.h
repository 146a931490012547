/* offload/machine/hardware.h - machines that are asked about by the names of their parts: a card, memory modules, drives.
 *
 * The table of cards and drives is share/strata/hardware.json, compiled in.  It says what each figure is (data sheet, attained)
 * and where it is from; what a name leaves open is assumed, and st_hardware_print() says so.  Pure functions; no state. */
#ifndef OFFLOAD_MACHINE_HARDWARE_H
#define OFFLOAD_MACHINE_HARDWARE_H

#include "offload/machine/rates.h"
#include "strata/status.h"

#include <stdio.h>

#define ST_HARDWARE_DRIVES_MAX 64u /* kinds of drives times how many of each */

/* As people write them.  Borrowed during a call. */
struct st_hardware_choice {
    const char *gpu;           /* a card's name or alias, such as "4090", "rtx-4090" or "RTX 4090"; its slot, "4090:gen3x8" */
    const char *ram;           /* SIZE[:NxDDRn-SPEED], such as "128GB:2xDDR5-5600"; NULL: assumed */
    const char *const *drives; /* [drive_count] RATE:SIZE[xN], such as "7GB/s:2TB" or "gen4:2TBx2" */
    uint32_t drive_count;
};

struct st_hardware_drive {
    double read, write, mixed; /* bytes per second of one alone */
    uint64_t bytes;            /* that are built in */
};

/* A machine as parts; a value. */
struct st_hardware {
    uint32_t gpu;                            /* row of the table: st_hardware_gpu_name() */
    uint32_t slot, slot_lanes;               /* 0: the card's own; else 1 for the slowest PCIe generation that is known, ... */
    uint64_t ram_bytes;                      /* that are built in */
    uint32_t ram_channels, ram_ddr, ram_mts; /* 2, 5, 5600: million transfers a second, of 8 bytes a channel */
    bool ram_size_assumed, ram_speed_assumed;
    uint32_t drive_count;
    struct st_hardware_drive drives[ST_HARDWARE_DRIVES_MAX];
};

/** Read a choice.  E_INVAL: an unknown card (the sentence has the nearest names, and how to write a machine file), or a form that
 *  cannot be read. */
strata_status st_hardware_parse(struct st_hardware *out, const struct st_hardware_choice *choice);

/** The machine of these parts: what a run may take of each, and rates as they are attained. */
void st_hardware_machine(struct st_machine *out, const struct st_hardware *hardware);

/** What one could buy.  Each changes *hardware and is false, with *hardware as it was, if there is no more of it.
 *  The card with the least memory above this one's that computes no slower; of equals the slowest. */
bool st_hardware_more_gpu(struct st_hardware *hardware);
/** As many modules again, of the same kind: twice the bytes, the same channels and rate.  At most 4 TiB. */
bool st_hardware_more_ram(struct st_hardware *hardware);
/** One more drive like the first; without any, one of the table's kind that most people have. */
bool st_hardware_more_drive(struct st_hardware *hardware);

/** The least part with which a run may take `needed` bytes of a tier, as people choose it: "machine.ram 150GB".  A card that
 *  computes no slower, whole GB of memory, or as many drives as now, all like the first.  False: there is none. */
bool st_hardware_enough(char *text, size_t bytes, const struct st_hardware *hardware, strata_tier tier, uint64_t needed);

/** Bytes of all drives until the first of them is full, or, written so many times, worn out: a swap has parts in proportion to
 *  their rates, not to their sizes.  0: there is none. */
double st_hardware_drive_bytes(const struct st_hardware *hardware);
/** Bytes that may be written to a drive for each byte that it holds, before it is worn out: assumed for all, and whence. */
double st_hardware_writes_endured(void);
const char *st_hardware_endurance_source(void);

/** Names of cards, as help and tables print them; NULL past the last. */
const char *st_hardware_gpu_name(uint32_t row);
/** "64 GB of DDR5-5600, 2 channels", "2 drives of 2 TB, 7 GB/s" - of the parts beside the card; at most `bytes` with the end. */
void st_hardware_ram_text(char *text, size_t bytes, const struct st_hardware *hardware);
void st_hardware_drives_text(char *text, size_t bytes, const struct st_hardware *hardware);

/** The parts, what of them a run may take, and what was assumed. */
void st_hardware_print(const struct st_hardware *hardware, FILE *file);
/** The table: cards with memory, rates, link and source, and kinds of drives. */
void st_hardware_list(FILE *file);
/** One line: {"cards":[...],"drives":[...]}, rates in units a second, sizes in bytes. */
void st_hardware_list_json(FILE *file);

#endif
