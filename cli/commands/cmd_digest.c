/* cli/commands/cmd_digest.c - prints the digest of a directory's weights. */
#include "cli/commands/commands.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "strata/model.h"

#include <stdio.h>

int cmd_digest(const struct cli_args *args)
{
    const char *dir = args->positional.items[0];
    struct st_json_writer w;
    char hex[33];
    const strata_status st = strata_directory_digest(dir, hex);

    if (st != STRATA_OK)
        return cli_fail(st);
    if (!args->json) {
        st_print(stdout, "%s  %s\n", hex, dir);
        return 0;
    }
    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "dir", dir);
    st_json_put_string(&w, "weights_digest", hex);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return 0;
}
