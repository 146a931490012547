/* program_print.c - see program_print.h. */
#include "offload/program/program_print.h"

#include "core/base/print.h"
#include "core/json/json.h"

#include <inttypes.h>
#include <string.h>

static const char *const tier_names[STRATA_TIER_COUNT] = {"device", "host", "nvme"};
static const char *const phase_names[ST_PHASE_BITS] = {"prologue", "body", "epilogue", "eval", "save", "redo", "early", "late"};
static const char phase_letters[ST_PHASE_BITS + 1] = "pbevsryl";

/* SAVE only where a run saves, what follows it only where something is updated early. */
static int phases_shown(const struct st_program *program)
{
    return program->early_pages > 0 ? ST_PHASE_BITS : program->sets > 0 ? ST_PHASE_COUNT + 1 : ST_PHASE_COUNT;
}

static const struct st_access *accesses_of(const struct st_program *program, const struct st_op *op)
{
    return &program->accesses[op->access_first];
}

static const char *tier_of(const struct st_program *program, const struct st_access *a)
{
    return tier_names[program->buffers[a->buffer].tier];
}

static void print_op(const struct st_program *program, const struct st_op *op, FILE *file)
{
    struct st_op_index indices[ST_OP_INDICES_MAX];
    const uint32_t index_count = st_op_indices(op, indices);
    char phases[ST_PHASE_BITS + 1] = "--------";

    phases[phases_shown(program)] = '\0';
    for (uint32_t i = 0; i < ST_PHASE_BITS; i++)
        if ((op->phases >> i & 1) != 0)
            phases[i] = phase_letters[i];
    st_print(file, "%6u  %-15s  %s  %-16s %12" PRIu64 " ", (unsigned)(op - program->ops),
             st_lane_name((enum strata_lane)op->lane), phases, st_op_name((enum st_op_kind)op->kind), op->bytes);
    for (uint32_t i = 0; i < index_count; i++)
        st_print(file, " %s %u", indices[i].name, indices[i].value);
    if (op->part > 0)
        st_print(file, " part %u", op->part);
    st_print(file, "%s%s%s ", op->first ? " first" : "", op->recompute ? " recompute" : "", op->early ? " early" : "");
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = accesses_of(program, op) + i;

        st_print(file, " %s=%s:%u%s", st_role_name((enum st_role)a->role), tier_of(program, a), a->buffer,
                 (a->mode & ST_WRITE) != 0 ? "*" : "");
    }
    st_print(file, "%s", op->wait_count > 0 ? "  after" : "");
    for (uint32_t i = op->wait_first; i < op->wait_first + op->wait_count; i++)
        st_print(file, " %u%s", program->waits[i].op, program->waits[i].previous ? "'" : "");
    st_print(file, "\n");
}

void st_program_print(const struct st_program *program, FILE *file)
{
    st_print(file, "%6s  %-15s  %.*s  %-16s %12s  of, operands, waits\n", "op", "lane", phases_shown(program), phase_letters,
             "kind", "bytes");
    for (uint32_t i = 0; i < program->op_count; i++)
        print_op(program, &program->ops[i], file);
}

static void put_operands(const struct st_program *program, const struct st_op *op, struct st_json_writer *w)
{
    st_json_array_open(w, "operands");
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = accesses_of(program, op) + i;

        st_json_object_open(w, NULL);
        st_json_put_string(w, "role", st_role_name((enum st_role)a->role));
        st_json_put_string(w, "tier", tier_of(program, a));
        st_json_put_u64(w, "buffer", a->buffer);
        st_json_put_bool(w, "reads", (a->mode & ST_READ) != 0);
        st_json_put_bool(w, "writes", (a->mode & ST_WRITE) != 0);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_waits(const struct st_program *program, const struct st_op *op, struct st_json_writer *w)
{
    st_json_array_open(w, "waits");
    for (uint32_t i = op->wait_first; i < op->wait_first + op->wait_count; i++) {
        st_json_object_open(w, NULL);
        st_json_put_u64(w, "op", program->waits[i].op);
        st_json_put_bool(w, "previous", program->waits[i].previous);
        st_json_object_close(w);
    }
    st_json_array_close(w);
}

static void put_op(const struct st_program *program, const struct st_op *op, struct st_json_writer *w)
{
    struct st_op_index indices[ST_OP_INDICES_MAX];
    const uint32_t index_count = st_op_indices(op, indices);

    st_json_object_open(w, NULL);
    st_json_put_u64(w, "op", (uint64_t)(op - program->ops));
    st_json_put_string(w, "kind", st_op_name((enum st_op_kind)op->kind));
    st_json_put_string(w, "lane", st_lane_name((enum strata_lane)op->lane));
    st_json_array_open(w, "phases");
    for (uint32_t i = 0; i < ST_PHASE_BITS; i++)
        if ((op->phases >> i & 1) != 0)
            st_json_put_string(w, NULL, phase_names[i]);
    st_json_array_close(w);
    for (uint32_t i = 0; i < index_count; i++)
        st_json_put_u64(w, indices[i].name, indices[i].value);
    st_json_put_bool(w, "first", op->first);
    st_json_put_bool(w, "recompute", op->recompute);
    if (op->early)
        st_json_put_bool(w, "early", op->early);
    if (op->part > 0)
        st_json_put_u64(w, "part", op->part);
    st_json_put_u64(w, "bytes", op->bytes);
    put_operands(program, op, w);
    put_waits(program, op, w);
    st_json_object_close(w);
    st_json_end_line(w);
}

void st_program_put(const struct st_program *program, FILE *file)
{
    for (uint32_t i = 0; i < program->op_count; i++) {
        struct st_json_writer w;

        st_json_begin(&w, file);
        put_op(program, &program->ops[i], &w);
    }
}
