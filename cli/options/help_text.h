/* cli/options/help_text.h - the text of a help, wrapped. */
#ifndef CLI_OPTIONS_HELP_TEXT_H
#define CLI_OPTIONS_HELP_TEXT_H

#include <stddef.h>
#include <stdio.h>

/** @param width  columns that paragraphs and items are filled to, and at which commands are broken so that they can be copied; 0:
 *  print the text unchanged */
void cli_teach_print(FILE *file, const char *teach, size_t width);

#endif
