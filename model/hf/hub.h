/* model/hf/hub.h - where the Hugging Face cache has what is published as ORG/NAME.  Only read: nothing is downloaded, and
 * nothing is written there. */
#ifndef MODEL_HF_HUB_H
#define MODEL_HF_HUB_H

#include "core/system/hub_id.h"
#include "core/system/path.h"

/**
 * Find the files of a model: models--ORG--NAME/snapshots/COMMIT, where refs/REVISION (main) says the commit.
 *
 * The cache is HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
 * ~/.cache/huggingface/hub; what is not there is looked for in TRANSFORMERS_CACHE, too.
 *
 * @param dir   out: the directory; "": the cache does not have it
 * @param root  out: where it was looked for first; "": there is no home
 * @return E_INPUT: it is there, but names no directory within the cache, or may not be read; E_IO, E_NOMEM */
strata_status st_hub_find(char dir[ST_PATH_MAX], char root[ST_PATH_MAX], const char *id);

#endif
