/* offload/config/config_print.h - cells of the tables in docs/config.md and docs/yaml.md.  For offload/config, and for recipes, whose tables are of the same form. */
#ifndef OFFLOAD_CONFIG_CONFIG_PRINT_H
#define OFFLOAD_CONFIG_CONFIG_PRINT_H

#include "offload/config/config_table.h"

void st_print_cell(FILE *file, const char *text);
/** The values that a key takes. */
void st_print_type(FILE *file, const struct st_field *field);
/** The verdict, followed by the values that are exceptions to it. */
void st_print_verdict(FILE *file, const struct st_field *field);

#endif
