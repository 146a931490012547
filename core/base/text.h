/* core/base/text.h - text from elsewhere, made fit to be shown.
 *
 * A name in a model file, an argument or a directory can hold bytes that a terminal obeys (escape sequences, C1 controls) or that
 * make a line look other than it is (bidirectional overrides, characters without width).  They are written out: \x1b, \u{202e};
 * bytes that are not UTF-8 as \x9b.  What is written out stays as it is when it passes here again.  All that people read comes
 * through here: st_error and st_log escape their sentences, core/base/print.h what goes to a FILE. */
#ifndef CORE_BASE_TEXT_H
#define CORE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TEXT_UNIT_MAX 12u /* "\u{10ffff}" and its end */

/** Bytes of the UTF-8 sequence at `text` (1..4), or 0 if it is not one. */
size_t st_text_utf8_bytes(const char *text, size_t bytes);
/** The character of a whole UTF-8 sequence of `length` bytes. */
uint32_t st_text_utf8_code(const char *text, size_t length);

/** True for what must not be shown as it stands: C0, DEL, C1, bidirectional controls, characters without width that join or part.
 */
bool st_text_hidden(uint32_t code);

/** The first character of `text` [bytes, at least 1], fit to be shown, into out; newline and tab are controls here.
 *  @return bytes of `text` that it stands for */
size_t st_text_unit(char out[ST_TEXT_UNIT_MAX], const char *text, size_t bytes);

/** All of `text` on one line; what does not fit is cut after a whole character.  @param out  [bytes], not `text` itself */
void st_text_escape(char *out, size_t bytes, const char *text);

#endif
