/* core/system/path.h - the text of paths; nothing here looks at a file. */
#ifndef CORE_SYSTEM_PATH_H
#define CORE_SYSTEM_PATH_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>

#define ST_PATH_MAX 1024

/** E_INVAL when too long. */
strata_status st_path_copy(char out[ST_PATH_MAX], const char *path);
/** Join into path[ST_PATH_MAX]; E_INVAL when too long. */
strata_status st_path_join(char path[ST_PATH_MAX], const char *dir, const char *name);
/** The name of a file without its directory: what follows the last slash. */
const char *st_path_name(const char *path);
/** Bytes of a path without the slashes at its end: "dir/" and "dir" are one. */
size_t st_path_length(const char *path);
/** The directory that a file lies in: what stands before the last slash, "/" of "/name", "." where there is none.  E_INVAL when
 *  too long. */
strata_status st_path_dir(char dir[ST_PATH_MAX], const char *path);
/** `name` in the directory that the file `path` lies in.  E_INVAL when too long. */
strata_status st_path_beside(char out[ST_PATH_MAX], const char *path, const char *name);
/** Whether the name ends in `end` (".json"), in small letters or capitals. */
bool st_path_ends(const char *path, const char *end);

#endif
