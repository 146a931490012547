/* offload/program/program.h - a step as data: where everything is placed, and the list of ops that move and compute it.
 *
 * The planner writes it (plan.h); the verifier proves it, the simulator times it, the engine runs it.  None of them depends on
 * how it was made: all they need to know about a page or a chunk is here.
 *
 * Buffers.  Everything an op touches is a buffer: a region that holds one thing for the whole run, a slot that holds
 * one thing for a while, or an extent on NVMe.  An op lists its accesses (op_table.h); what it waits for follows from them.
 *
 * Phases.  One list of ops is repeated, once per cycle.  Four masks over it are the phases: a masked-out op does nothing but
 * still waits for what it would have waited for, so that slot reuse stays ordered.
 *   PROLOGUE  first step after a start or a flush: no update is pending
 *   BODY      every further step
 *   EPILOGUE  flush: only the pending updates
 *   EVAL      only forward
 * A fifth, SAVE, stands beside one in which every chunk is updated: its ops write what has been updated and lives in memory to
 * its extents, as the others do with what lives on NVMe anyway, so that the cycle leaves a whole set.
 * A sixth, REDO, stands beside BODY, and LATE beside PROLOGUE or BODY: an op with EARLY does nothing in a cycle with LATE.
 * A wait names an op earlier in this cycle, or any op of the previous one.
 *
 * Early updates.  A gated program may update pages in backward, too, as if no step were clipped or skipped.  What such a page and
 * its chunks have between uses lies in buffers of two places: one has the version in force, and early ops write the other.  A
 * BODY begins by taking these into force, everything at once: the step before had clip factor 1.  With REDO, or SAVE, it forgets
 * them, and the ops of the gate make those updates from the versions in force; so does EPILOGUE.  What the gate leaves goes to
 * the first place, so that after a flush, and where a save finds it, everything is there.  A cycle with LATE makes no early
 * updates, so that the next one has REDO, SAVE or EPILOGUE.  Memory and order are one plan's, so each cycle may be either. */
#ifndef OFFLOAD_PROGRAM_PROGRAM_H
#define OFFLOAD_PROGRAM_PROGRAM_H

#include "core/base/scratch.h"
#include "core/base/space.h"
#include "kernels/kernels.h"
#include "offload/program/op_table.h"
#include "offload/program/policy.h"
#include "offload/program/shard.h"
#include "offload/workload.h"
#include "strata/status.h"

#define ST_EXTENT_ALIGN 4096u /* alignment of extents and of their slots */

/* How the fp32 master is stored: split over weight and low half (bf16), in its own plane (fp16), or as the weight itself
 * (fp32). */
enum st_master { ST_MASTER_SPLIT, ST_MASTER_FULL, ST_MASTER_WEIGHT };
/* How a group that is stored so has it. */
static inline enum st_master st_master_of(strata_dtype format)
{
    return format == STRATA_BF16 ? ST_MASTER_SPLIT : format == STRATA_F16 ? ST_MASTER_FULL : ST_MASTER_WEIGHT;
}
/* Bytes per parameter of a chunk's first plane. */
static inline size_t st_master_width(enum st_master master)
{
    return master == ST_MASTER_SPLIT ? 2 : master == ST_MASTER_FULL ? 4 : 0;
}

/* Arrays with a value per parameter that outlive a step; MASTER is a split master's low half, or a full master. */
enum st_plane { ST_PLANE_MASTER, ST_PLANE_MOMENT1, ST_PLANE_MOMENT2, ST_PLANE_WEIGHT, ST_PLANE_COUNT };
/* "master", "moment1", ... */
const char *st_plane_name(enum st_plane plane);
/* Bytes of so many elements of a plane whose weights are stored so; a moment in 8 bits: from a multiple of ST_NORM_BLOCK on. */
static inline uint64_t st_plane_bytes(enum st_plane plane, strata_dtype format, enum st_moment_format moments, uint64_t elems)
{
    if (plane == ST_PLANE_MASTER)
        return elems * st_master_width(st_master_of(format));
    if (plane == ST_PLANE_WEIGHT)
        return st_format_bytes(format, elems);
    return st_moment_bytes(moments, elems);
}

/* Where a thing is between its uses.  STREAMED: it has no fixed place on the device; a slot there holds it for each use. */
enum st_where {
    ST_WHERE_DEVICE = STRATA_TIER_DEVICE,
    ST_WHERE_HOST = STRATA_TIER_HOST,
    ST_WHERE_NVME = STRATA_TIER_NVME,
    ST_WHERE_STREAMED,
    ST_WHERE_NONE
};

/* Planes of one chunk's state, one after the other from its buffer's start; each starts at a multiple of 64 bytes. */
struct st_chunk {
    uint32_t page;
    enum st_group_kind group;
    strata_dtype format;                     /* of its weights */
    enum st_master master;                   /* that follows from it */
    uint64_t first, elems;                   /* elements from the shard's start; how many (0: the rank's slice ends before) */
    uint64_t at;                             /* bytes from the start of the shard's weights to its own */
    uint64_t page_first, page_at;            /* the same from the page's start */
    uint64_t position;                       /* of element 0 in the model, every group's begin rounded up to ST_NORM_BLOCK */
    enum st_where state;                     /* DEVICE, HOST or NVME; NONE: frozen, or forward only */
    uint32_t region;                         /* buffer: device or host region, or the extent; ST_NO_BUFFER: no state */
    uint32_t extent;                         /* of the state, in a run that saves wherever the state is; ST_NO_BUFFER: none */
    uint64_t moment1_offset, moment2_offset; /* low half or master at 0; bytes; moment2 0: there is none */
    uint64_t bytes;                          /* of all planes, a multiple of 4096 */
    uint64_t tile_first;                     /* index of its first tile: a group's tiles are counted on from its first element */
};

/* Bytes on a drive of so many in memory: whole blocks of it. */
static inline uint64_t st_extent_bytes(uint64_t bytes)
{
    return (bytes + ST_EXTENT_ALIGN - 1) / ST_EXTENT_ALIGN * ST_EXTENT_ALIGN;
}
/* Bytes of a chunk's extent that a load writes, and its first read after that moves: those before the moments, which are zero
 * then; at least a block, so that every read is one. */
static inline uint64_t st_chunk_fresh_bytes(const struct st_chunk *chunk)
{
    return st_extent_bytes(chunk->moment1_offset > 0 ? chunk->moment1_offset : 1);
}
/* Bytes of a shard's weights, from its start, that go home after an update: its trained groups', and on the way to a drive what
 * the last of its blocks holds beside them. */
static inline uint64_t st_page_updated_bytes(const struct st_page *page, enum st_where home)
{
    const uint64_t bytes = home == ST_WHERE_NVME ? st_extent_bytes(page->trained_bytes) : page->trained_bytes;

    return bytes < page->bytes ? bytes : page->bytes;
}

/* Bytes of a shard's weights in a set; where those in the base begin, and their bytes: all that is frozen, which is written once.
 * Both have the drive's block in which the trained ones end. */
static inline uint64_t st_page_set_bytes(const struct st_page *page)
{
    return st_page_updated_bytes(page, ST_WHERE_NVME);
}
static inline uint64_t st_page_base_at(const struct st_page *page)
{
    return page->trained_bytes < page->bytes ? page->trained_bytes / ST_EXTENT_ALIGN * ST_EXTENT_ALIGN : page->bytes;
}
static inline uint64_t st_page_base_bytes(const struct st_page *page)
{
    return page->bytes - st_page_base_at(page);
}

struct st_page_place {
    enum st_where weights;  /* DEVICE: a copy, or the home, stays there; STREAMED */
    enum st_where home;     /* of the weights that are in force between uses: DEVICE, HOST or NVME */
    enum st_where sum;      /* of gradients, fp32, between the layers' ops that add to it: DEVICE, HOST, STREAMED */
    enum st_where grad;     /* DEVICE or HOST: rounded, and where the update is made; NONE: nothing of the page is trained */
    enum st_where state;    /* for the update: DEVICE; STREAMED: it crosses the link, and back; HOST: the host updates it */
    uint32_t weight_region; /* device buffer, or ST_NO_BUFFER */
    uint32_t home_region;   /* shard: host or device buffer, or extent (the base's if all is frozen); or ST_NO_BUFFER: the weights
                             * are at home in weight_region */
    uint32_t extent;        /* of the weights; in a run that saves the set's, wherever they live; ST_NO_BUFFER: none */
    uint32_t base_extent;   /* in a run that saves: of what is frozen, from st_page_base_at() on, or ST_NO_BUFFER */
    uint32_t grad_region;   /* rounded gradient: device or host buffer; ST_NO_BUFFER: slots in host memory */
    uint32_t grad_extent;   /* where it waits for the update, if it has no region and the update waits; else ST_NO_BUFFER */
    uint32_t accum_region;  /* fp32 accumulator that stays (table slices, fp32 device updates), or ST_NO_BUFFER */
    uint32_t leaf_regions;  /* the first of st_leaf_depth() more that stay between micro-batches, or ST_NO_BUFFER: sums of later
                               leaves, for as long as they are not added to those before them */
    uint32_t chunk_first, chunk_count;
    bool early;   /* its updates are made in backward, and again behind the gate if they are not kept */
    bool sum_cut; /* the sum in host memory is of the shard alone */
};

#define ST_NO_BUFFER UINT32_MAX

struct st_buffer {
    strata_tier tier;
    uint8_t space;   /* st_space, of NVMe; else 0 */
    uint32_t other;  /* buffer that is its other place, which no op names; 0: it has but one */
    uint64_t offset; /* in the tier's arena or its space */
    uint64_t bytes;
};

/* Bytes of NVMe that spaces take, with so many sets. */
static inline uint64_t st_spaces_bytes(const uint64_t space_bytes[ST_SPACE_COUNT], uint32_t sets)
{
    return space_bytes[ST_SPACE_SCRATCH] + space_bytes[ST_SPACE_BASE] + sets * space_bytes[ST_SPACE_SET];
}

/* Slots of each pool.  host_weights: of pages on their way from and to a drive, weights and gradients apart. */
struct st_slots {
    uint32_t weights, host_weights, states, streamed_states, acts, host_acts, grads;
};

/* Buffers that are asked for by name. */
struct st_buffer_names {
    uint32_t tokens_host, tokens_device, scalars_device, scalars_host, norms_host, constants;
    uint32_t overflows_device, overflows_host; /* uint64_t: weights that rounded to infinity on the device, ever */
    uint32_t head_internals;                   /* of micro-batch 0 */
    uint32_t choice;                           /* host, of every rank that weights are cut for: a layer's chosen experts */
};

struct st_program {
    struct st_workload workload;  /* own copy */
    uint32_t ranks, rank, stage;  /* as in the policy; ranks is 1 or more */
    struct st_page *shards;       /* [workload.page_count]; with one rank, or at stage 0, the pages */
    bool wire_bf16;               /* sums go to other ranks in bf16, not fp32 */
    bool forward_only;            /* evaluation, generation: no gradients, no optimizer state */
    enum st_update_policy update; /* not AUTO */
    enum st_where acts;           /* where layer boundaries wait for backward: DEVICE, HOST or NVME */
    bool swaps_grads;             /* some pages have a grad_extent */
    uint32_t early_pages;         /* pages whose updates are made early */
    uint32_t leaves;              /* see st_leaf_depth() */
    uint32_t kept_blocks;         /* top-most blocks whose internals are kept */
    uint32_t *norm_first;         /* [workload.page_count + 1]: a page's first norm among the step's, see st_scalars_bytes() */
    uint32_t moments;             /* planes of the optimizer beside the master: 1 or 2 */
    enum st_moment_format moment_format;

    uint64_t needed[STRATA_TIER_COUNT];   /* bytes of each arena and of all sets and spaces, exactly what is taken */
    uint64_t space_bytes[ST_SPACE_COUNT]; /* of NVMe, by space; of one set */
    uint32_t sets;                        /* 0: no checkpoints are saved, and NVMe is scratch alone */
    uint64_t part_bytes;                  /* of a run that saves: see st_part_at() */
    struct st_page_place *pages;          /* [workload.page_count] */
    struct st_chunk *chunks;
    uint32_t chunk_count;
    uint64_t tile_count; /* checksum tiles over all chunks */
    struct st_buffer *buffers;
    uint32_t buffer_count;
    struct st_slots slots;
    struct st_buffer_names at;

    struct st_op *ops;
    uint32_t op_count;
    struct st_access *accesses;
    uint32_t access_count;
    struct st_wait *waits;
    uint32_t wait_count;
    uint32_t buffer_room, op_room, access_room, wait_room; /* how many the lists have memory for */
};

/* Leaves.  The micro-batches of a step, in order, are cut into leaves of equal size.  A page's gradients are added in order, from
 * zero, within each leaf, and the leaves' sums in a balanced binary tree over their index (split at the largest power of two
 * below the count): neighbours of equal size become one as soon as both are there, what is left at the end from right to left. So
 * a page's sums are a stack, as deep before leaf i as i has bits that are set; the sum at depth d is thing p + d * page_count. */
static inline uint32_t st_leaf_micros(const struct st_program *program)
{
    return program->workload.grad_accum / program->leaves;
}
/* The deepest that a stack gets, above the sum that it begins with. */
static inline uint32_t st_leaf_depth(uint32_t leaves)
{
    uint32_t depth = 0;

    while (leaves >> depth > 1)
        depth++;
    return depth;
}

/* A save brings what lives on the device down in parts.  One begins at every multiple of part_bytes and goes on for ST_PART_MORE
 * bytes into the next, so that it has every tile that begins in it; what it writes ends where the next one begins. */
#define ST_PART_MORE (ST_TILE_ELEMS * 4u)
static inline uint64_t st_part_at(const struct st_program *program, const struct st_op *op)
{
    return op->part * program->part_bytes;
}
/* Bytes of the thing that a save's copy is of: those that a set has. */
static inline uint64_t st_saved_bytes(const struct st_program *program, const struct st_op *op)
{
    return st_op_rows[op->kind].operands[0].content == ST_HOLDS_STATE ? program->chunks[op->chunk].bytes
                                                                      : st_page_set_bytes(&program->shards[op->page]);
}

/* Whether a page lives on the device as the rank's shard. */
static inline bool st_page_sliced(const struct st_page_place *place)
{
    return place->home == ST_WHERE_DEVICE && place->weights == ST_WHERE_STREAMED;
}
/* The buffer in which its weights are in force between uses. */
static inline uint32_t st_page_home(const struct st_page_place *place)
{
    return place->home_region != ST_NO_BUFFER ? place->home_region : place->weight_region;
}

/* Whether a page's rounded gradient waits on NVMe. */
static inline bool st_page_swaps_grad(const struct st_program *program, uint32_t page)
{
    return program->swaps_grads && program->pages[page].grad_extent != ST_NO_BUFFER;
}

/* Ranks that a page is cut for: each has its shard alone, or all have the whole of it. */
static inline uint32_t st_program_cuts(const struct st_program *program)
{
    return program->stage > 0 ? program->ranks : 1;
}
/* The rank's slice of a page's group: what it keeps. */
static inline struct st_slice st_program_slice(const struct st_program *program, uint32_t page, uint32_t group)
{
    const uint32_t cuts = st_program_cuts(program);

    return st_slice_of(&program->workload, page, group, cuts, cuts > 1 ? program->rank : 0);
}
/* The same of bytes of its shard's weights: st_shard_pieces(). */
static inline uint32_t st_program_pieces(struct st_shard_piece *out, const struct st_program *program, uint32_t page,
                                         uint64_t first, uint64_t bytes)
{
    const uint32_t cuts = st_program_cuts(program);

    return st_shard_pieces(out, &program->workload, page, cuts, cuts > 1 ? program->rank : 0, first, bytes);
}

/* Bytes of a page's weights that other ranks have: all, or what an update changes. */
static inline uint64_t st_program_gathered_bytes(const struct st_program *program, uint32_t page, bool trained)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < program->workload.pages[page].group_count; i++) {
        const struct st_group *g = &program->workload.pages[page].groups[i];

        if (!trained || g->kind != ST_GROUP_FROZEN)
            bytes += st_format_bytes(g->format, g->elems - st_program_slice(program, page, i).elems);
    }
    return bytes;
}
/* Elements of a page's trained groups that are this rank's. */
uint64_t st_program_own_elems(const struct st_program *program, uint32_t page);
/* What other ranks send and get of a page's sum has a slot of so many bytes, the same on every rank: what comes, of each of them
 * the trained groups' slices, one behind the other.  In bf16 what leaves, too, rank behind rank, from st_program_wire_leaving()
 * on, and at the slot's end ST_WIRE_BESIDE bytes that rounding fills and nobody reads. */
#define ST_WIRE_BESIDE 256u
uint64_t st_program_wire_slot(const struct st_program *program, uint32_t page);
uint64_t st_program_wire_leaving(const struct st_program *program, uint32_t page);
/* Bytes of a value on the wire. */
size_t st_program_wire_width(const struct st_program *program);
/* Bytes of sums that come, and, at stage 0, of the other ranks' slices of its rounded gradient. */
uint64_t st_program_wire_bytes(const struct st_program *program, uint32_t page);
uint64_t st_program_gathered_grads(const struct st_program *program, uint32_t page);

/* Frees the lists and the workload's copy, not the program itself. */
void st_program_fini(struct st_program *program);

/** Free the unused ends of the lists, which are there for the next program that is written over this one. */
void st_program_trim(struct st_program *program);

/** Write program->waits from the ops' accesses.  E_NOMEM. */
strata_status st_program_wait(struct st_program *program, struct st_scratch *scratch);

/** Prove a program sound: every input resident and current when used under any order the waits allow, no slot in two
 *  roles, buffers inside what is needed and disjoint, every op reachable.  E_INTERNAL with the first fault found. */
strata_status st_program_verify(const struct st_program *program);

/* The first op of backward; op_count: there is none. */
uint32_t st_program_backward(const struct st_program *program);

/* Bytes that the ops of a phase move. */
struct st_traffic st_program_traffic(const struct st_program *program, enum st_phase phase);
/* The same of the first (0) or second (1) step after a load: each chunk's first read finds it fresh.  And the bytes by which a
 * run reads less for that, once every chunk has been updated. */
struct st_traffic st_program_fresh_traffic(const struct st_program *program, uint32_t step);
uint64_t st_program_spared(const struct st_program *program);

/* What a checkpoint has to be given beside what a set holds already: the bytes of trained weights and state that live in memory.
 * 0 for a run that saves none. */
uint64_t st_program_unsaved(const struct st_program *program);

/* Are updates pending between steps?  Then a first step differs from the others, and a flush has something to do. */
static inline bool st_program_gated(const struct st_program *program)
{
    return program->update == ST_UPDATE_GATED && !program->forward_only;
}

/* Bytes of the state of so many elements, and of a chunk, without the padding of its planes. */
static inline uint64_t st_state_bytes(const struct st_program *program, enum st_master master, uint64_t elems)
{
    return elems * st_master_width(master) + program->moments * st_moment_bytes(program->moment_format, elems);
}
static inline uint64_t st_chunk_state_bytes(const struct st_program *program, const struct st_chunk *chunk)
{
    return st_state_bytes(program, chunk->master, chunk->elems);
}

/* Bytes of the tokens of all ranks' steps, rank after rank, and where this one's begin. */
static inline uint64_t st_program_tokens_bytes(const struct st_program *program)
{
    return program->ranks * st_workload_tokens_bytes(&program->workload);
}
/* Micro-batches of all ranks are counted rank by rank.  What an op's micro-batch is: one of this rank's, or, from grad_accum on,
 * one of all ranks'. */
static inline uint32_t st_program_global_micro(const struct st_program *program, uint32_t micro)
{
    const uint32_t g = program->workload.grad_accum;

    return micro < g ? program->rank * g + micro : micro - g;
}
static inline uint32_t st_program_micro(const struct st_program *program, uint32_t global)
{
    const uint32_t g = program->workload.grad_accum;

    return global / g == program->rank ? global % g : g + global;
}

/* Whether the program around the engine computes the layers (offload/engine/caller.h). */
static inline bool st_program_called(const struct st_program *program)
{
    return st_workload_opaque(&program->workload);
}

/* Bytes of the boundary that an op of a layer names. */
static inline uint64_t st_program_boundary_bytes(const struct st_program *program, const struct st_op *op)
{
    return program->workload.layers[op->layer - 1].boundary_bytes;
}

/* The small results of a step, its scalars, on the device and once more on the host: norms, then losses of all ranks'
 * micro-batches, with experts' routes as many auxiliary losses, where a caller computes the layers each rank's divisor, and on the
 * host each rank's tally.  A page has one norm; with several ranks one for each run of tiles of each rank's slice of each of its
 * trained groups, slice by slice. */
struct st_norm {
    double norm2;
    uint64_t nonfinite;
};
struct st_tally {
    uint64_t overflowed; /* weights that rounded to infinity on this rank since the start */
    uint64_t requests;
    uint64_t rates; /* digest of the rates and decays of the step's update, which all ranks must have alike */
};
/* Of a rank: losses, auxiliary losses, the divisor. */
static inline uint64_t st_scalars_numbers(const struct st_program *program)
{
    const uint64_t g = program->workload.grad_accum;

    return g + (program->workload.routes_bytes > 0 ? g : 0) + (st_program_called(program) ? 1 : 0);
}
static inline uint64_t st_scalars_bytes(const struct st_program *program)
{
    return program->norm_first[program->workload.page_count] * sizeof(struct st_norm) +
           program->ranks * st_scalars_numbers(program) * sizeof(double);
}
static inline double *st_scalars_losses(const struct st_program *program, struct st_norm *scalars)
{
    return (double *)(void *)&scalars[program->norm_first[program->workload.page_count]];
}
/* NULL: there are none. */
static inline double *st_scalars_aux_losses(const struct st_program *program, struct st_norm *scalars)
{
    double *losses = st_scalars_losses(program, scalars);

    return program->workload.routes_bytes > 0 ? losses + (uint64_t)program->ranks * program->workload.grad_accum : NULL;
}
static inline double *st_scalars_divisors(const struct st_program *program, struct st_norm *scalars)
{
    return st_scalars_losses(program, scalars) + program->ranks * (st_scalars_numbers(program) - 1);
}
static inline struct st_tally *st_scalars_tallies(const struct st_program *program, struct st_norm *scalars)
{
    return (struct st_tally *)(void *)((unsigned char *)scalars + st_scalars_bytes(program));
}

#endif
