/* offload/checkpoint/manifest.h - manifest.json of a checkpoint: what it is of, and all of a run's state that is no plane.
 *
 * One JSON object, whose last member is the XXH3-128 of all text before it.  It is read strictly: every member must be there, and
 * one that is not known is an error, as is any byte that differs.  Numbers that must come back exactly are text: floats with
 * their bits in hex ("-0x1.8000000000000p+3"; an exponent of 1024 is infinite or NaN), numbers of 64 bits as "0x1f". */
#ifndef OFFLOAD_CHECKPOINT_MANIFEST_H
#define OFFLOAD_CHECKPOINT_MANIFEST_H

#include "core/system/file.h"
#include "nvme/mover/stripe.h"
#include "offload/engine/train_state.h"
#include "offload/program/program.h"
#include "strata/status.h"

#include <limits.h>
#include <stdint.h>

#define ST_MANIFEST_NAME        "manifest.json"
#define ST_EXTENTS_NAME         "extents.bin"
#define ST_MANIFEST_VERSION     1u
#define ST_MANIFEST_BYTES_MAX   (UINT64_C(512) << 20) /* of the file: more than the longest lists take */
#define ST_MANIFEST_DATA_MAX    65536u                /* token files */
#define ST_DIGEST_TEXT          33u                   /* 32 hex digits and a NUL */
#define ST_MANIFEST_PARTS_MAX   1024u
#define ST_MANIFEST_NOTE_BYTES  1024u /* with the NUL */
#define ST_MANIFEST_RATES_BYTES 3072u /* of all parameter groups of layers of others: their most, and names, fit */

/* A group of a page; the list has them page by page, in the order in which they lie there. */
struct st_manifest_group {
    uint32_t page;
    enum st_group_kind kind;
    strata_dtype format;
    uint64_t offset, elems; /* from the page's start */
};

/* A part of a tensor: its elements are those of one page, the parts of one tensor follow each other. */
struct st_manifest_tensor {
    char name[96];
    uint32_t page;
    uint64_t offset, elems;                /* from the page's start */
    char layer[96], group[96], shape[192]; /* of layers of others: names, and "2x3"; else "" */
};

/* A token file, by what tells it from others. */
struct st_manifest_data {
    char path[ST_PATH_MAX]; /* as it was named, for sentences */
    uint64_t bytes;
    char header[ST_DIGEST_TEXT];  /* of its header */
    char windows[ST_DIGEST_TEXT]; /* of 64 sampled windows */
    char marks[ST_DIGEST_TEXT];   /* of where documents begin and which tokens are trained; "": nothing says so, or unknown */
};

/* A file of planes in the checkpoint's directory. */
struct st_manifest_file {
    char name[NAME_MAX + 1];
    enum st_space space; /* BASE or SET */
    uint32_t dir;        /* index in the stripe; of part k of the checkpoint: k times the stripe's directories more */
    uint64_t bytes;
};

/* What is owned is freed by st_manifest_fini(). */
struct st_manifest {
    char version[32]; /* of strata, that wrote it */
    char run[17];     /* of the run that wrote it; a resumed run keeps it.  16 hex digits */
    uint64_t step;    /* steps so far, skipped ones included */
    uint32_t world, leaves;
    uint32_t numerics; /* grows when a sum or a rounding changes */

    char device[64], isa[32], matmul[64]; /* bits are promised only for these */

    char optimizer[32];
    uint32_t moments; /* planes beside the master, 1 or 2 */
    enum st_moment_format moment_format;

    char model[96], model_source[ST_PATH_MAX]; /* its name; the directory that it came from, or "" */
    char model_shapes[ST_DIGEST_TEXT];         /* of the table of its pages and tensors */
    char model_files[ST_DIGEST_TEXT];          /* of the files in model/, the tokenizer's among them; "": none */
    strata_dtype dtype;
    uint32_t page_count;
    struct st_manifest_group *groups; /* [group_count] owned; every page has 1..ST_GROUPS_MAX */
    uint32_t group_count;
    struct st_manifest_tensor *tensors; /* [tensor_count] owned; in parameter order.  None: page by page, group by group */
    uint32_t tensor_count;
    char group_rates[ST_MANIFEST_RATES_BYTES]; /* of layers of others: a line for each parameter group; else "" */

    struct st_manifest_data *data; /* [data_count] owned */
    uint32_t data_count;
    uint64_t data_seed, data_sequences; /* of all files together */
    uint32_t data_seq;                  /* tokens of a sequence */
    uint32_t data_order;                /* in which they are read: enum strata_data_order */
    char data_date[11];                 /* what the chat template that made their tokens took for today; "": none was asked for */
    uint64_t data_position;             /* sequences used so far */

    struct st_train_state train; /* no update is pending */

    struct st_stripe stripe;
    uint64_t space_bytes[ST_SPACE_COUNT]; /* of BASE and of SET, of one part; SCRATCH 0 */
    struct st_manifest_file *files;       /* [file_count] owned; of each space that has bytes one for each directory and part */
    uint32_t file_count;
    uint64_t extents_bytes;
    char extents_digest[ST_DIGEST_TEXT];

    uint64_t metrics_bytes;            /* written to --metrics so far */
    bool eval_due;                     /* an evaluation after this step is still to be made */
    char score[32];                    /* of its weights, the lower the better (st_manifest_score); "": none */
    char note[ST_MANIFEST_NOTE_BYTES]; /* of whoever saves, for when it resumes; "": none */
    char *config;                      /* owned: the effective configuration, as JSON text */
};

/** Write it as text.
 *  @param text  out: NUL-terminated, freed by the caller
 *  @return E_NOMEM; E_INVAL: it is not one that st_manifest_parse() takes */
strata_status st_manifest_text(char **text, uint64_t *bytes, const struct st_manifest *m);
/** Read the text of a manifest.
 *  @param name  used in sentences
 *  @return E_CORRUPT: damaged, or of another version; E_NOMEM.  *out is untouched then */
strata_status st_manifest_parse(struct st_manifest *out, const char *text, uint64_t bytes, const char *name);
/** The same from a file.  E_INPUT: there is none; E_CORRUPT, E_NOMEM, E_IO. */
strata_status st_manifest_read(struct st_manifest *out, const char *path);
void st_manifest_fini(struct st_manifest *m);

/** Its score, exactly.  False: it has none. */
bool st_manifest_score(const struct st_manifest *m, double *score);
void st_manifest_set_score(struct st_manifest *m, double score);

/** "fp32", "bf16", "8bit". */
const char *st_moment_format_name(enum st_moment_format format);

/** Group number `group` of a page; NULL: it has fewer. */
const struct st_manifest_group *st_manifest_group(const struct st_manifest *m, uint32_t page, uint32_t group);
/** Whether a group of it has a plane. */
bool st_manifest_has_plane(const struct st_manifest *m, const struct st_manifest_group *g, enum st_plane plane);
/** Parts of the checkpoint: one of each rank that kept its own shards, or one of a whole run.  Offsets in a space count through
 *  the parts, one behind the other. */
uint32_t st_manifest_parts(const struct st_manifest *m);
/** A file of a space; NULL: the space is empty. */
const struct st_manifest_file *st_manifest_file(const struct st_manifest *m, enum st_space space, uint32_t dir);

#endif
