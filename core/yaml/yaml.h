/* core/yaml/yaml.h - strict YAML over libyaml (its one home): the same trees as core/json makes, whose values know their lines.
 *
 * YAML 1.1 as PyYAML's safe_load() resolves it (yes, no, on, off are booleans; 0x10, 010 and 1_000 are numbers), but for
 * what OmegaConf, by which LLaMA-Factory reads its files, does otherwise: 1e-4 is a number, and dates are text.  Merge keys (<<)
 * and aliases are followed.  Errors that name the line: a key that stands twice in a mapping, tags, keys that are no scalars,
 * .inf and .nan, numbers of base 60 (1:30), several documents, what does not end in ST_YAML_VALUES_MAX values however aliases
 * multiply it, and nesting deeper than ST_YAML_DEPTH_MAX. */
#ifndef CORE_YAML_YAML_H
#define CORE_YAML_YAML_H

#include "core/json/json.h"

#define ST_YAML_DEPTH_MAX  64u
#define ST_YAML_VALUES_MAX 16384u

/** Parse `bytes` of text; `name` is used in errors.  An empty text is null.  E_CONFIG: the source's error.  Free with
 *  st_json_free(). */
strata_status st_yaml_parse(st_json **out, const char *text, size_t bytes, const char *name);
/** Read a file of at most max_bytes and parse it.  E_CONFIG also: missing, or too large. */
strata_status st_yaml_parse_file(st_json **out, const char *path, size_t max_bytes);
/** Whether a file's name says that it is YAML: .yaml, .yml. */
bool st_yaml_is_name(const char *path);

#endif
