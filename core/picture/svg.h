/* core/picture/svg.h - writes an SVG: rectangles, lines, text, groups, with a tooltip where one is given.
 *
 * Colours are told apart by people who see few of them, on light and dark ground (Okabe and Ito); the ground itself is left
 * transparent and the text follows the reader's light or dark scheme.  Text from outside is made safe to print (core/base/text.h)
 * and escaped for XML.  Whether everything could be written is the stream's affair. */
#ifndef CORE_PICTURE_SVG_H
#define CORE_PICTURE_SVG_H

#include <stddef.h>
#include <stdio.h>

#define ST_SVG_LETTER 6.2 /* pixels of a letter of the 11 pixel font, on average */

#define ST_SVG_SKY        "#56b4e9"
#define ST_SVG_BLUE       "#0072b2"
#define ST_SVG_ORANGE     "#e69f00"
#define ST_SVG_PURPLE     "#cc79a7"
#define ST_SVG_GREEN      "#009e73"
#define ST_SVG_VERMILLION "#d55e00"
#define ST_SVG_YELLOW     "#f0e442"
#define ST_SVG_GREY       "#8a8a8a"

struct st_svg {
    FILE *file;
    double width, height;
};

struct st_svg_box {
    double x, y, width, height;
};

/** @param title  of the picture, @param desc  what it shows, in a sentence: for readers that do not see it */
void st_svg_begin(struct st_svg *s, FILE *file, double width, double height, const char *title, const char *desc);
void st_svg_end(struct st_svg *s);

/** A group with a tooltip; `key` and `value` become its attribute data-KEY, for programs. */
void st_svg_group_open(struct st_svg *s, const char *name, const char *key, double value, const char *tooltip);
void st_svg_group_close(struct st_svg *s);

/** One line of text, cut with an ellipsis where it is wider than `room` pixels.
 *  @param css  class: name (its right end is at x), head, title or label */
void st_svg_text(struct st_svg *s, double x, double y, const char *css, double room, const char *text);
void st_svg_line(struct st_svg *s, double x1, double y1, double x2, double y2);

/** One rectangle.
 *  @param paint    attributes, such as class='held' @param tooltip  NULL: none */
void st_svg_rect(struct st_svg *s, const char *paint, struct st_svg_box box, const char *tooltip);
/** Rectangles that share one element, so that many are small. */
void st_svg_path_open(struct st_svg *s, const char *paint);
void st_svg_path_rect(struct st_svg *s, struct st_svg_box box);
void st_svg_path_close(struct st_svg *s);

#endif
