/* offload/config/config_print_internal.h - cells of the tables in docs/config.md and docs/yaml.md.  Private to offload/config. */
#ifndef CORE_CONFIG_PRINT_H
#define CORE_CONFIG_PRINT_H

#include "offload/config/config_table_internal.h"

void st_print_cell(FILE *file, const char *text);
/** The values that a key takes. */
void st_print_type(FILE *file, const struct st_field *field);
/** The verdict, followed by the values that are exceptions to it. */
void st_print_verdict(FILE *file, const struct st_field *field);

#endif
