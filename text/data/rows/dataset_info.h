/* text/data/rows/dataset_info.h - one data set of LLaMA-Factory's dataset_info.json. */
#ifndef TEXT_DATA_ROWS_DATASET_INFO_H
#define TEXT_DATA_ROWS_DATASET_INFO_H

#include "core/system/file.h"
#include "text/data/rows/row_shape.h"

struct st_dataset {
    char path[ST_PATH_MAX]; /* of its file, beside dataset_info.json */
    struct st_row_shape shape;
    uint64_t num_samples; /* 0: all */
    st_json *info;        /* what the shape's names lie in */
};

/** Read data set `name` of the file `path`.  As there, "columns" and "tags", where they stand, name all that exist: what they
 *  leave out has no default.  A set with only a prompt, without query and response, is one of texts.
 *  E_INPUT: no such set, one that is not a local file, or one of a kind that is not read (ranking, kto_tag, images, videos,
 *  audios, formatting "openai", another split than "train").  E_NOMEM. */
strata_status st_dataset_open(struct st_dataset *out, const char *path, const char *name);
void st_dataset_close(struct st_dataset *d);

#endif
