/* core/yaml/yaml_scalar.h - what a plain scalar of YAML 1.1 is. */
#ifndef CORE_YAML_YAML_SCALAR_H
#define CORE_YAML_YAML_SCALAR_H

#include <stdbool.h>
#include <stddef.h>

enum st_yaml_kind { ST_YAML_TEXT, ST_YAML_NULL, ST_YAML_BOOL, ST_YAML_INT, ST_YAML_REAL, ST_YAML_NOT_FINITE, ST_YAML_BASE_60 };

/** @param value  out: a number, or 0 and 1; of an integer from 2^53 on the nearest */
enum st_yaml_kind st_yaml_scalar(const char *text, double *value);

#endif
