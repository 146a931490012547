/* text/tokenizer/fields_internal.h - reads the fields of tokenizer files; what is not understood is refused by name. */
#ifndef TEXT_TOKENIZER_FIELDS_INTERNAL_H
#define TEXT_TOKENIZER_FIELDS_INTERNAL_H

#include "core/json/json.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_PLACE_BYTES 96
/* An object of a file: "Llama/tokenizer.json", "pre_tokenizer.pretokenizers[1]". */
struct st_place {
    const char *file;
    char name[ST_PLACE_BYTES]; /* empty: the whole file */
    const st_json *node;
};

/** E_INPUT: FILE: NAME.KEY: text.  key NULL: about the object itself. */
strata_status st_place_fault(const struct st_place *at, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** The member `key`, an object; *out has node NULL if it is absent or null.  E_INPUT: something else. */
strata_status st_place_object(struct st_place *out, const struct st_place *at, const char *key);
/** Element `index` of the array `key`, where `node` is that element.  E_INPUT: not an object. */
strata_status st_place_element(struct st_place *out, const struct st_place *at, const char *key, const st_json *node,
                               uint32_t index);
/** The first element of the array `key`; NULL also if it is empty, absent or null.  E_INPUT: not an array. */
strata_status st_place_array(const st_json **first, const struct st_place *at, const char *key);

/** E_INPUT unless every member that is not null is one of `known`, words between spaces. */
strata_status st_place_known(const struct st_place *at, const char *known);
/** *out: the text; unchanged if it is absent or null.  E_INPUT: not a string. */
strata_status st_place_text(const char **out, const struct st_place *at, const char *key);
/** The same, and E_INPUT if it is absent. */
strata_status st_place_need_text(const char **out, const struct st_place *at, const char *key);
strata_status st_place_bool(bool *out, const struct st_place *at, const char *key);
/** A whole number of at most `most`; E_INPUT. */
strata_status st_place_number(uint32_t *out, const struct st_place *at, const char *key, uint32_t most);

/** Parse a whole file of at most bytes_max.  E_INPUT, E_NOMEM. */
strata_status st_tokenizer_parse_file(st_json **out, const char *path, uint64_t bytes_max);

#endif
