/* model/hf/hf_ends.c - adds a token to those that end what is generated, in the text of generation_config.json or config.json. */
#include "core/base/error.h"
#include "core/json/json_edit.h"
#include "model/hf/generation.h"
#include "model/hf/hf_source_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

strata_status st_hf_ends_add(char **text, const char *where, uint32_t token)
{
    struct st_generation g;
    char list[(ST_END_TOKENS_MAX + 1) * 12 + 2], *edited;
    size_t length = 1;
    strata_status st = st_generation_parse(&g, *text, strlen(*text), where);

    if (st != STRATA_OK)
        return st;
    list[0] = '[';
    for (uint32_t i = 0; i < g.end_count; i++) {
        if (g.end_tokens[i] == token)
            return STRATA_OK;
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%u, ", g.end_tokens[i]);
    }
    (void)snprintf(list + length, sizeof(list) - length, "%u]", token);
    st = st_json_edit(&edited, *text, where, "eos_token_id", list);
    if (st != STRATA_OK)
        return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
    free(*text);
    *text = edited;
    return STRATA_OK;
}
