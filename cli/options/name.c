/* cli/options/name.c - see name.h. */
#include "cli/options/name.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/json/json.h"

#include <string.h>

bool cli_name_reads_otherwise(const char *text)
{
    st_json *node = NULL;
    const bool is_json = st_json_parse(&node, text, strlen(text), "a name") == STRATA_OK;
    const enum st_json_type type = is_json ? st_json_type(node) : ST_JSON_NUMBER;

    st_json_free(node);
    return strcmp(text, "auto") == 0 || (type != ST_JSON_NUMBER && type != ST_JSON_BOOL); /* which are names there, too */
}

strata_status cli_name_check_dir(const char *dir)
{
    if (strchr(dir, ',') != NULL)
        return st_error(STRATA_E_INVAL,
                        "--nvme %s: a comma separates directories: give --nvme once for each, or a link without a comma", dir);
    if (dir[0] == ' ' || dir[strlen(dir) - 1] == ' ')
        return st_error(STRATA_E_INVAL, "--nvme \"%s\": a configuration drops blanks at the ends of a name: give a link to it",
                        dir);
    return st_text_is_utf8(dir) ? STRATA_OK
                                : st_error(STRATA_E_INVAL, "--nvme %s: the name is not UTF-8: give a link to it", dir);
}
