/* op_table.c - see op_table.h. */
#include "offload/program/op_table.h"

/* clang-format off */
#define PAGE  ST_INDEX_PAGE
#define CHUNK (ST_INDEX_PAGE | ST_INDEX_CHUNK)
#define BLOCK (ST_INDEX_PAGE | ST_INDEX_BLOCK | ST_INDEX_MICRO)
#define MICRO ST_INDEX_MICRO
#define SLICE  (ST_INDEX_PAGE | ST_INDEX_SLICE | ST_INDEX_MICRO)
#define EXPERTS (SLICE | ST_INDEX_BLOCK)

#define IN(r, holds)           {ST_ROLE_##r, ST_OPERAND_READ, ST_HOLDS_##holds, ST_OPERAND_ONE}
#define OUT(r, holds)          {ST_ROLE_##r, ST_OPERAND_WRITE, ST_HOLDS_##holds, ST_OPERAND_ONE}
#define INOUT(r, holds)        {ST_ROLE_##r, ST_OPERAND_MODIFY, ST_HOLDS_##holds, ST_OPERAND_ONE}
#define SOME(n, r, how, holds) {ST_ROLE_##r, ST_OPERAND_##how, ST_HOLDS_##holds, ST_OPERAND_##n}
#define WEIGHTS                .work = ST_WORK_COPY, .operands = {IN(FROM, WEIGHT), OUT(TO, WEIGHT), IF_CHOSEN}
#define COPY(holds)            .work = ST_WORK_COPY, .operands = {IN(FROM, holds), OUT(TO, holds)}
#define IF_CHOSEN              SOME(CHOSEN, CHOICE, READ, CHOICE)
#define CALL(c)                .work = ST_WORK_CALL, .call = ST_CALL_##c, .operands
#define LAYER(c)               .work = ST_WORK_LAYER, .call = ST_CALL_##c, .operands
#define DOES(w)                .work = ST_WORK_##w, .operands
#define ON(l)                  STRATA_LANE_##l
#define CHECKSUM(s)                .checksum = ST_CHECKSUM_##s

/* Name, lane, indices, what it does with which operands, checksums. */
const struct st_op_row st_op_rows[ST_OP_KIND_COUNT] = {
    /* What comes in: tokens, weights, state. */
    [ST_OP_UPLOAD_TOKENS]   = {"upload_tokens",   ON(UPLOAD),          0,     COPY(TOKENS)},
    [ST_OP_READ_WEIGHT]     = {"read_weight",     ON(READ_WEIGHT),     PAGE,  WEIGHTS, CHECKSUM(ARRIVES)},
    [ST_OP_WRITE_WEIGHT]    = {"write_weight",    ON(WRITE),           PAGE,  COPY(WEIGHT)},
    [ST_OP_READ_STATE]      = {"read_state",      ON(READ_STATE),      CHUNK, COPY(STATE), CHECKSUM(ARRIVES)},
    [ST_OP_WRITE_STATE]     = {"write_state",     ON(WRITE),           CHUNK, COPY(STATE)},
    [ST_OP_UPLOAD_STATE]    = {"upload_state",    ON(UPLOAD),          CHUNK, COPY(STATE), CHECKSUM(OPENS)},
    [ST_OP_DOWNLOAD_STATE]  = {"download_state",  ON(DOWNLOAD),        CHUNK, COPY(STATE), CHECKSUM(CLOSES)},
    [ST_OP_UPLOAD_WEIGHT]   = {"upload_weight",   ON(UPLOAD),          PAGE,  WEIGHTS, CHECKSUM(OPENS)},
    [ST_OP_DOWNLOAD_WEIGHT] = {"download_weight", ON(DOWNLOAD),        PAGE,  COPY(WEIGHT), CHECKSUM(CLOSES)},
    [ST_OP_PLACE_WEIGHT]    = {"place_weight",    ON(COMPUTE),         PAGE,  WEIGHTS},

    /* Updates of one chunk; the scalars' clip factor is waited for unless updates run in backward. */
    [ST_OP_UPDATE]          = {"update",          ON(UPDATE),          CHUNK, DOES(UPDATE) =
        {INOUT(STATE, STATE), INOUT(WEIGHT, WEIGHT), IN(GRAD, GRAD), SOME(MAYBE, SCALARS, READ, SCALARS)}},
    [ST_OP_UPDATE_DEVICE]   = {"update_device",   ON(UPDATE_DEVICE),   CHUNK, DOES(UPDATE) =
        {INOUT(STATE, STATE), INOUT(WEIGHT, WEIGHT), IN(GRAD, GRAD), INOUT(OVERFLOWS, SCALARS), SOME(MAYBE, SCALARS, READ, SCALARS)}},

    /* Forward. */
    [ST_OP_GATHER_DEVICE]   = {"gather_device",   ON(COMPUTE),         MICRO, DOES(SMALL) =
        {OUT(ACT_OUT, ACT), IN(TOKENS, TOKENS), SOME(EACH, WEIGHT, READ, WEIGHT)}},
    [ST_OP_GATHER_HOST]     = {"gather_host",     ON(UPDATE),          PAGE,  DOES(GATHER) =
        {IN(WEIGHT, WEIGHT), IN(TOKENS, TOKENS), SOME(ONE, ROWS, ADD, ROWS)}, CHECKSUM(OPENS)},
    [ST_OP_UPLOAD_ROWS]     = {"upload_rows",     ON(UPLOAD),          MICRO, DOES(COPY) =
        {IN(ROWS, ROWS), OUT(ACT_OUT, ACT)}},
    [ST_OP_EMBED_FORWARD]   = {"embed_forward",   ON(COMPUTE),         PAGE | MICRO, CALL(EMBED_FORWARD) =
        {INOUT(ACT, ACT), IN(WEIGHT, WEIGHT)}},
    [ST_OP_BLOCK_FORWARD]   = {"block_forward",   ON(COMPUTE),         BLOCK, CALL(BLOCK_FORWARD) =
        {SOME(LAYER, ACT, READ, ACT), SOME(LAYER, ACT_OUT, WRITE, ACT), SOME(LAYER, WEIGHT, READ, WEIGHT),
         SOME(LAYER, INTERNALS, WRITE, INTERNALS), OUT(WORKSPACE, SCRATCH)}},
    [ST_OP_DOWNLOAD_ACT]    = {"download_act",    ON(DOWNLOAD),        MICRO, COPY(ACT), CHECKSUM(CLOSES)},
    [ST_OP_WRITE_ACT]       = {"write_act",       ON(WRITE),           MICRO, COPY(ACT)},
    [ST_OP_READ_ACT]        = {"read_act",        ON(READ_ACTIVATION), MICRO, COPY(ACT), CHECKSUM(ARRIVES)},
    [ST_OP_UPLOAD_ACT]      = {"upload_act",      ON(UPLOAD),          MICRO, COPY(ACT), CHECKSUM(OPENS)},
    [ST_OP_ROUTE_FORWARD]   = {"route_forward",   ON(COMPUTE),         BLOCK, CALL(ROUTE_FORWARD) =
        {SOME(LAYER, ACT, READ, ACT), IN(WEIGHT, WEIGHT), OUT(INTERNALS, INTERNALS), SOME(LAYER, ROUTES, ADD, ROUTES), OUT(WORKSPACE, SCRATCH)}},
    [ST_OP_DOWNLOAD_CHOICE] = {"download_choice", ON(DOWNLOAD),        BLOCK, DOES(COPY) =
        {IN(INTERNALS, INTERNALS), OUT(CHOICE, CHOICE)}},
    [ST_OP_GATHER_CHOICE]   = {"gather_choice",   ON(COMM),            BLOCK, DOES(COMM) = {INOUT(CHOICE, CHOICE)}},
    [ST_OP_CHOOSE]          = {"choose",          ON(UPDATE),          BLOCK, DOES(SMALL) = {INOUT(CHOICE, CHOICE)}},
    [ST_OP_EXPERTS_FORWARD] = {"experts_forward", ON(COMPUTE),         EXPERTS, CALL(EXPERTS_FORWARD) =
        {IN(WEIGHT, WEIGHT), INOUT(INTERNALS, INTERNALS), OUT(WORKSPACE, SCRATCH), IF_CHOSEN}},
    [ST_OP_ROUTE_END]       = {"route_end",       ON(COMPUTE),         BLOCK, CALL(ROUTE_END) =
        {SOME(LAYER, ACT_OUT, WRITE, ACT), IN(INTERNALS, INTERNALS), OUT(WORKSPACE, SCRATCH)}},
    [ST_OP_HEAD_NORM]       = {"head_norm",       ON(COMPUTE),         PAGE | MICRO, CALL(HEAD_NORM) =
        {IN(ACT, ACT), IN(WEIGHT, WEIGHT), OUT(INTERNALS, HEAD)}},
    [ST_OP_HEAD_STATS]      = {"head_stats",      ON(COMPUTE),         SLICE, CALL(HEAD_STATS) =
        {INOUT(INTERNALS, HEAD), IN(WEIGHT, WEIGHT), IN(TOKENS, TOKENS), OUT(WORKSPACE, SCRATCH), SOME(MAYBE, LOGITS, WRITE, LOGITS)}},
    [ST_OP_HEAD_LOSS]       = {"head_loss",       ON(COMPUTE),         MICRO, CALL(HEAD_LOSS) =
        {IN(INTERNALS, HEAD), IN(TOKENS, TOKENS), SOME(LAYER, ROUTES, READ, ROUTES), INOUT(SCALARS, SCALARS)}},

    /* What the caller computes.  These end when it says so, or at once if the step does without it. */
    [ST_OP_PAGE_USE]        = {"page_use",        ON(CALLER),          PAGE,  DOES(SMALL) = {IN(WEIGHT, WEIGHT)}},
    [ST_OP_LAYER_FORWARD]   = {"layer_forward",   ON(CALLER),          BLOCK, LAYER(BLOCK_FORWARD) =
        {SOME(LAYER, ACT, WRITE, ACT), SOME(LAYER, WEIGHT, READ, WEIGHT)}},
    [ST_OP_PAGE_GRAD]       = {"page_grad",       ON(CALLER),          PAGE | MICRO, DOES(SMALL) =
        {IN(WEIGHT, WEIGHT), SOME(ONE, SUM, ADD, ACCUM)}},
    [ST_OP_LAYER_BACKWARD]  = {"layer_backward",  ON(CALLER),          BLOCK, LAYER(BLOCK_BACKWARD) =
        {SOME(LAYER, ACT, READ, ACT), SOME(LAYER, WEIGHT, READ, WEIGHT), SOME(LAYER, SUM, ADD, ACCUM)}},
    [ST_OP_CALLER_END]      = {"caller_end",      ON(CALLER),          0,     DOES(SMALL) = {INOUT(SCALARS, SCALARS)}},

    /* Backward; a page whose groups are all frozen has no sum. */
    [ST_OP_HEAD_GRAD]       = {"head_grad",       ON(COMPUTE),         SLICE, CALL(HEAD_GRAD) =
        {INOUT(INTERNALS, HEAD), IN(WEIGHT, WEIGHT), IN(TOKENS, TOKENS), OUT(WORKSPACE, SCRATCH), SOME(KEPT, LOGITS, READ, LOGITS),
         SOME(TRAINED, SUM, ADD, ACCUM)}},
    [ST_OP_HEAD_BACKWARD]   = {"head_backward",   ON(COMPUTE),         PAGE | MICRO, CALL(HEAD_BACKWARD) =
        {IN(ACT, ACT), IN(WEIGHT, WEIGHT), IN(INTERNALS, HEAD), OUT(DACT, DACT), OUT(WORKSPACE, SCRATCH), SOME(TRAINED, SUM, ADD, ACCUM)}},
    [ST_OP_BLOCK_BACKWARD]  = {"block_backward",  ON(COMPUTE),         BLOCK, CALL(BLOCK_BACKWARD) =
        {SOME(LAYER, ACT, READ, ACT), SOME(LAYER, WEIGHT, READ, WEIGHT), SOME(LAYER, INTERNALS, REMAKE, INTERNALS),
         SOME(LAYER, DACT, CARRY, DACT), OUT(WORKSPACE, SCRATCH), SOME(LAYER, SUM, ADD, ACCUM)}},
    [ST_OP_ROUTE_AGAIN]     = {"route_again",     ON(COMPUTE),         BLOCK, CALL(ROUTE_AGAIN) =
        {SOME(REMADE, ACT, READ, ACT), SOME(REMADE, WEIGHT, READ, WEIGHT), SOME(ONE, INTERNALS, REOPEN, INTERNALS), IN(DACT, DACT),
         OUT(WORKSPACE, SCRATCH)}},
    [ST_OP_EXPERTS_BACKWARD] = {"experts_backward", ON(COMPUTE),       EXPERTS, CALL(EXPERTS_BACKWARD) =
        {IN(WEIGHT, WEIGHT), INOUT(INTERNALS, INTERNALS), IN(DACT, DACT), OUT(WORKSPACE, SCRATCH), SOME(TRAINED, SUM, ADD, ACCUM)}},
    [ST_OP_ROUTE_BACKWARD]  = {"route_backward",  ON(COMPUTE),         BLOCK, CALL(ROUTE_BACKWARD) =
        {SOME(LAYER, ACT, READ, ACT), IN(WEIGHT, WEIGHT), INOUT(INTERNALS, INTERNALS), SOME(LAYER, ROUTES, READ, ROUTES), INOUT(DACT, DACT),
         OUT(WORKSPACE, SCRATCH), SOME(TRAINED, SUM, ADD, ACCUM)}},
    [ST_OP_EMBED_BACKWARD]  = {"embed_backward",  ON(COMPUTE),         PAGE | MICRO, CALL(EMBED_BACKWARD) =
        {IN(DACT, DACT), SOME(ONE, SUM, ADD, ACCUM)}},

    /* Gradients: their sums, the one rounding, where they go. */
    [ST_OP_DOWNLOAD_ACCUM]  = {"download_accum",  ON(DOWNLOAD),        PAGE,  COPY(ACCUM)},
    [ST_OP_UPLOAD_ACCUM]    = {"upload_accum",    ON(UPLOAD),          PAGE,  COPY(ACCUM)},
    [ST_OP_REDUCE_SUM]      = {"reduce_sum",      ON(COMPUTE),         PAGE,  DOES(REDUCE) =
        {INOUT(SUM, ACCUM), IN(ADDEND, ACCUM)}},
    [ST_OP_SCATTER_DEVICE]  = {"scatter_device",  ON(COMPUTE),         PAGE,  DOES(SMALL) =
        {SOME(ONE, SUM, ADD, ACCUM), IN(TOKENS, TOKENS), SOME(EACH, DACT, READ, DACT)}},
    [ST_OP_DOWNLOAD_DACT]   = {"download_dact",   ON(DOWNLOAD),        MICRO, COPY(DACT)},
    [ST_OP_SCATTER_HOST]    = {"scatter_host",    ON(UPDATE),          MICRO, DOES(SCATTER) =
        {IN(DACT, DACT), IN(TOKENS, TOKENS), SOME(EACH, SUM, ADD, ACCUM)}},
    [ST_OP_FINISH_GRAD]     = {"finish_grad",     ON(COMPUTE),         PAGE,  DOES(ROUND) =
        {IN(SUM, ACCUM), OUT(GRAD, GRAD), INOUT(SCALARS, SCALARS), OUT(WORKSPACE, SCRATCH)}},
    [ST_OP_FINISH_HOST]     = {"finish_host",     ON(UPDATE),          PAGE,  DOES(ROUND) =
        {IN(SUM, ACCUM), OUT(GRAD, GRAD), INOUT(NORMS, SCALARS)}},
    [ST_OP_DOWNLOAD_GRAD]   = {"download_grad",   ON(DOWNLOAD),        PAGE,  COPY(GRAD), CHECKSUM(CLOSES)},
    [ST_OP_WRITE_GRAD]      = {"write_grad",      ON(WRITE),           PAGE,  COPY(GRAD)},
    [ST_OP_READ_GRAD]       = {"read_grad",       ON(READ_WEIGHT),     PAGE,  COPY(GRAD)}, /* checked by the updates, tile by tile */

    /* The step's end. */
    [ST_OP_DOWNLOAD_SCALARS] = {"download_scalars", ON(DOWNLOAD),      0,     COPY(SCALARS)},
    [ST_OP_END]             = {"end",             ON(UPDATE),          0,     DOES(SMALL) =
        {INOUT(SCALARS, SCALARS), IN(NORMS, SCALARS), IN(OVERFLOWS, SCALARS)}},

    /* Between ranks.  What a gather brings is no new version of a thing, but the rest of the one that is there. */
    [ST_OP_GATHER_TOKENS]   = {"gather_tokens",   ON(COMM),            0,     DOES(COMM) = {INOUT(TOKENS, TOKENS)}},
    [ST_OP_EXCHANGE_ROWS]   = {"exchange_rows",   ON(COMM),            PAGE,  DOES(COMM) =
        {IN(WEIGHT, WEIGHT), IN(TOKENS, TOKENS), INOUT(ROWS, ROWS)}},
    [ST_OP_GATHER_WEIGHT]   = {"gather_weight",   ON(COMM),            PAGE,  DOES(COMM) = {INOUT(TO, WEIGHT), IF_CHOSEN}},
    [ST_OP_GATHER_UPDATED]  = {"gather_updated",  ON(COMM),            PAGE,  DOES(COMM) = {INOUT(TO, WEIGHT)}},
    [ST_OP_ROUND_SUM]       = {"round_sum",       ON(COMPUTE),         PAGE,  DOES(ROUND) =
        {IN(SUM, ACCUM), OUT(WIRE, WIRE), OUT(WORKSPACE, SCRATCH)}},
    [ST_OP_EXCHANGE_GRAD]   = {"exchange_grad",   ON(COMM),            PAGE,  DOES(COMM) = {IN(SUM, ACCUM), OUT(WIRE, WIRE)}},
    [ST_OP_EXCHANGE_ROUNDED] = {"exchange_rounded", ON(COMM),          PAGE,  DOES(COMM) = {INOUT(WIRE, WIRE)}},
    [ST_OP_REDUCE_RANKS]    = {"reduce_ranks",    ON(COMPUTE),         PAGE,  DOES(REDUCE) = {INOUT(SUM, ACCUM), INOUT(WIRE, WIRE)}},
    [ST_OP_GATHER_GRAD]     = {"gather_grad",     ON(COMM),            PAGE,  DOES(COMM) = {INOUT(TO, GRAD)}},
    [ST_OP_EXCHANGE_DACT]   = {"exchange_dact",   ON(COMM),            MICRO, DOES(COMM) =
        {SOME(ONE, DACT, ADD, DACT), IN(TOKENS, TOKENS)}},
    [ST_OP_SCATTER_MICRO]   = {"scatter_micro",   ON(COMPUTE),         PAGE | MICRO, DOES(SMALL) =
        {SOME(ONE, SUM, ADD, ACCUM), IN(TOKENS, TOKENS), IN(DACT, DACT)}},
    [ST_OP_GATHER_SCALARS]  = {"gather_scalars",  ON(COMM),            0,     DOES(COMM) =
        {INOUT(SCALARS, SCALARS), INOUT(NORMS, SCALARS), IN(OVERFLOWS, SCALARS)}},
};
/* clang-format on */

static const char *const role_names[ST_ROLE_COUNT] = {
    [ST_ROLE_NONE] = "?",          [ST_ROLE_FROM] = "from",           [ST_ROLE_TO] = "to",
    [ST_ROLE_STATE] = "state",     [ST_ROLE_WEIGHT] = "weight",       [ST_ROLE_GRAD] = "grad",
    [ST_ROLE_SUM] = "sum",         [ST_ROLE_ADDEND] = "addend",       [ST_ROLE_ACT] = "act",
    [ST_ROLE_ACT_OUT] = "act_out", [ST_ROLE_DACT] = "dact",           [ST_ROLE_INTERNALS] = "internals",
    [ST_ROLE_LOGITS] = "logits",   [ST_ROLE_WORKSPACE] = "workspace", [ST_ROLE_TOKENS] = "tokens",
    [ST_ROLE_ROWS] = "rows",       [ST_ROLE_SCALARS] = "scalars",     [ST_ROLE_NORMS] = "norms",
    [ST_ROLE_WIRE] = "wire",       [ST_ROLE_OVERFLOWS] = "overflows", [ST_ROLE_ROUTES] = "routes",
    [ST_ROLE_CHOICE] = "choice",
};

static const char *const lane_names[STRATA_LANE_COUNT] = {
    [STRATA_LANE_COMPUTE] = "compute",
    [STRATA_LANE_UPLOAD] = "upload",
    [STRATA_LANE_DOWNLOAD] = "download",
    [STRATA_LANE_UPDATE] = "update",
    [STRATA_LANE_UPDATE_DEVICE] = "update_device",
    [STRATA_LANE_READ_STATE] = "read_state",
    [STRATA_LANE_READ_WEIGHT] = "read_weight",
    [STRATA_LANE_READ_ACTIVATION] = "read_activation",
    [STRATA_LANE_WRITE] = "write",
    [STRATA_LANE_COMM] = "comm",
    [STRATA_LANE_CALLER] = "caller",
};

const char *st_op_name(enum st_op_kind kind)
{
    return kind < ST_OP_KIND_COUNT ? st_op_rows[kind].name : "?";
}

const char *st_role_name(enum st_role role)
{
    return role < ST_ROLE_COUNT ? role_names[role] : "?";
}

const char *st_lane_name(enum strata_lane lane)
{
    return lane < STRATA_LANE_COUNT ? lane_names[lane] : "none";
}

uint32_t st_phase_index(enum st_phase phase)
{
    const unsigned without = phase & (ST_PHASE_PROLOGUE | ST_PHASE_BODY | ST_PHASE_EPILOGUE | ST_PHASE_EVAL);

    return without == ST_PHASE_PROLOGUE ? 0 : without == ST_PHASE_BODY ? 1 : without == ST_PHASE_EPILOGUE ? 2 : 3;
}

uint32_t st_op_indices(const struct st_op *op, struct st_op_index out[ST_OP_INDICES_MAX])
{
    const struct {
        uint8_t bit;
        struct st_op_index index;
    } all[ST_OP_INDICES_MAX] = {{ST_INDEX_PAGE, {"page", op->page}},
                                {ST_INDEX_CHUNK, {"chunk", op->chunk}},
                                {ST_INDEX_BLOCK, {"block", op->layer - 1}},
                                {ST_INDEX_SLICE, {"slice", op->slice}},
                                {ST_INDEX_MICRO, {"micro", op->micro}}};
    uint32_t count = 0;

    for (uint32_t i = 0; i < ST_OP_INDICES_MAX; i++)
        if ((st_op_rows[op->kind].indices & all[i].bit) != 0)
            out[count++] = all[i].index;
    return count;
}

bool st_op_copies(enum st_op_kind kind)
{
    return st_op_rows[kind].operands[0].role == ST_ROLE_FROM;
}

const struct st_operand *st_operand_of(enum st_op_kind kind, enum st_role role)
{
    for (uint32_t i = 0; i < ST_OPERANDS_MAX; i++)
        if (st_op_rows[kind].operands[i].role == role)
            return &st_op_rows[kind].operands[i];
    return NULL;
}

enum st_access_mode st_operand_mode(const struct st_operand *operand, const struct st_op *op)
{
    switch (operand->use) {
    case ST_OPERAND_ADD:
        return op->first ? ST_WRITE : ST_MODIFY;
    case ST_OPERAND_REMAKE:
        return op->recompute ? ST_WRITE : ST_READ;
    case ST_OPERAND_REOPEN:
        return op->recompute ? ST_WRITE : ST_MODIFY;
    case ST_OPERAND_CARRY:
        return op->top ? ST_WRITE : ST_MODIFY;
    default:
        return (enum st_access_mode)operand->use;
    }
}

const struct st_access *st_op_access(const struct st_access *accesses, const struct st_op *op, enum st_role role)
{
    for (uint32_t i = op->access_first; i < op->access_first + op->access_count; i++)
        if (accesses[i].role == role)
            return &accesses[i];
    return NULL;
}
