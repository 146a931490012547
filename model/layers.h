/* model/layers.h - a list of layers that somebody else computes (strata/layers.h): its pages, and where in them each tensor is.
 *
 * A layer is a page.  Its tensors lie in it by parameter group and dtype, what is frozen last, each from a multiple of 64 bytes
 * on.  Resident layers have the first pages. */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "model/model.h"
#include "strata/layers.h"

#define ST_LAYERS_RESIDENT UINT32_MAX

/* A parameter group. */
struct st_layers_group {
    char name[STRATA_LAYER_NAME_BYTES];
    double lr_scale, weight_decay;
};

struct st_layers {
    struct st_workload workload;
    struct st_tensor *tensors; /* [tensor_count] in parameter order */
    struct st_layers_layer {
        char name[STRATA_LAYER_NAME_BYTES];
        uint32_t page;
        uint32_t ordered;   /* which of the layers in order; or ST_LAYERS_RESIDENT */
    } * layers;             /* [layer_count] as they were given */
    uint32_t *placed;       /* [tensor_count] tensors, page by page, by their place there: */
    uint32_t *placed_first; /* [page_count + 1] */
    uint32_t *by_page;      /* [page_count] the layer of each */
    const char **ordered;   /* [layer_count] names of those in order */
    const char **names;     /* [tensor_count] of tensors, sorted */
    uint32_t tensor_count, layer_count, group_count;
    struct st_layers_group groups[STRATA_PARAM_GROUPS_MAX];
};

/* What the configuration says of it. */
struct st_layers_batch {
    strata_dtype dtype;
    uint32_t micro_batch, grad_accum, workers;
    double weight_decay; /* of groups without their own */
};

/** Build pages and workload.  E_INVAL names layer or tensor: names, shapes, groups; E_NOMEM. */
strata_status st_layers_create(struct st_layers **out, const struct strata_layers_opts *opts,
                               const struct st_layers_batch *batch);
void st_layers_destroy(struct st_layers *l);
/** The tensor of this name; ST_NO_TENSOR. */
uint32_t st_layers_find(const struct st_layers *l, const char *name);

/* A part of a tensor that lies in a range of its page. */
struct st_layers_piece {
    uint32_t tensor;
    uint64_t tensor_first, count, range_first; /* elements, from the starts of tensor and range */
};
/** The next piece of elements [first, first + count) of a page, in order; false past the last.  *next is 0 before the first. */
bool st_layers_piece(struct st_layers_piece *out, const struct st_layers *l, uint32_t page, uint64_t first, uint64_t count,
                     uint32_t *next);

#endif
