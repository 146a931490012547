/* core/base/text.h - text from outside, made safe to print.
 *
 * A name in a model file, an argument or a directory can hold bytes that a terminal obeys (escape sequences, C1 controls) or that
 * make a line look different from what it is (bidirectional overrides, characters without width).  They are escaped: \x1b,
 * \u{202e}; bytes that are not UTF-8 as \x9b.  Escaping is idempotent.  Everything that people read comes through here: st_error
 * and st_log escape their sentences, and core/base/print.h escapes what goes to a FILE. */
#ifndef CORE_BASE_TEXT_H
#define CORE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TEXT_UNIT_MAX 12u /* "\u{10ffff}" and its NUL */

/** Only letters of ASCII, whatever the locale of the program says: in a Turkish one tolower('I') is no i. */
char st_text_lower(char c);
/** A letter or a digit of ASCII. */
bool st_text_is_word(char c);
/** Whether both are the same but for the case of ASCII's letters, and whether `text` begins so. */
bool st_text_same(const char *a, const char *b);
bool st_text_begins(const char *text, const char *word);

/** Bytes of the UTF-8 sequence at `text` (1..4), or 0 if it is not one. */
size_t st_text_utf8_bytes(const char *text, size_t bytes);
/** Whether all of it is UTF-8. */
bool st_text_is_utf8(const char *text);
/** The character of a whole UTF-8 sequence of `length` bytes. */
uint32_t st_text_utf8_code(const char *text, size_t length);
/** Writes a character, which is no surrogate and below 0x110000, as UTF-8.  @return its bytes, 1 to 4 */
size_t st_text_utf8_put(char out[4], uint32_t code);

/** True for characters that must not be printed raw: C0, DEL, C1, bidirectional controls, zero-width joiners and separators. */
bool st_text_hidden(uint32_t code);

/** The first character of `text` [bytes, at least 1], made safe to print, into out; newline and tab count as control characters
 *  here.
 *  @return bytes of `text` that it stands for */
size_t st_text_unit(char out[ST_TEXT_UNIT_MAX], const char *text, size_t bytes);

/** Escapes all of `text` onto one line; if it does not fit, it is cut after a whole character.  @param out  [bytes], not `text`
 *  itself */
void st_text_escape(char *out, size_t bytes, const char *text);

/** A word as a shell takes it for one: in quotes where it must be.  Cut where it does not fit.  @return out */
const char *st_text_shell(char *out, size_t bytes, const char *word);

#endif
