/* svg.c - see core/picture/svg.h.  One element a line. */
#include "core/picture/svg.h"

#include "core/base/number.h"
#include "core/base/text.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const char style[] = "text { font: 11px system-ui, sans-serif; fill: #5c5c5c }\n"
                            ".name { text-anchor: end }\n"
                            ".head { font-size: 15px; font-weight: 600 }\n"
                            ".title { font-weight: 600 }\n"
                            ".line { stroke: #808080; stroke-opacity: .3; fill: none }\n"
                            ".ground { fill: #808080; fill-opacity: .1 }\n"
                            ".held { fill: #808080; fill-opacity: .22 }\n"
                            ".stall { fill: url(#hatch) }\n"
                            ".edge { fill: #808080; fill-opacity: 0; stroke: #808080; stroke-width: .5 }\n"
                            ".lacks { fill: url(#hatch); stroke: " ST_SVG_VERMILLION "; stroke-width: 1.5 }\n"
                            "@media (prefers-color-scheme: dark) { text { fill: #b4b4b4 } }\n";

/* At most one digit behind the point, and none that says nothing. */
static void put_number(struct st_svg *s, double value)
{
    const double tenths = floor(fabs(value) * 10 + 0.5);

    fprintf(s->file, "%s%.0f", value < 0 && tenths > 0 ? "-" : "", floor(tenths / 10));
    if (fmod(tenths, 10) > 0)
        fprintf(s->file, ".%.0f", fmod(tenths, 10));
}

static void put_xml(struct st_svg *s, const char *safe)
{
    static const char special[] = "<>&'\"";
    static const char *const entities[] = {"&lt;", "&gt;", "&amp;", "&#39;", "&quot;"};

    for (; *safe != '\0'; safe++) {
        const char *found = strchr(special, *safe);

        if (found != NULL)
            fputs(entities[found - special], s->file);
        else
            fputc(*safe, s->file);
    }
}

/* U+FFFE and U+FFFF are characters for UTF-8, but none that XML may hold. */
static bool is_no_xml(const char *unit)
{
    return strcmp(unit, "\xef\xbf\xbe") == 0 || strcmp(unit, "\xef\xbf\xbf") == 0;
}

/* The first `units` characters, as they are printed; an ellipsis in place of the last one where there are more. */
static void put_text(struct st_svg *s, const char *text, size_t units)
{
    size_t left = strlen(text);
    char unit[ST_TEXT_UNIT_MAX];

    for (size_t i = 0; left > 0 && i < units; i++) {
        const size_t taken = st_text_unit(unit, text, left);

        put_xml(s, i + 1 == units && left > taken ? "\xe2\x80\xa6" : is_no_xml(unit) ? "\xef\xbf\xbd" : unit);
        text += taken;
        left -= taken;
    }
}

static void put_tooltip(struct st_svg *s, const char *tooltip)
{
    if (tooltip == NULL)
        return;
    fputs("<title>", s->file);
    put_text(s, tooltip, SIZE_MAX);
    fputs("</title>", s->file);
}

void st_svg_begin(struct st_svg *s, FILE *file, double width, double height, const char *title, const char *desc)
{
    *s = (struct st_svg){file, width, height};
    fprintf(file,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%.0f' height='%.0f' viewBox='0 0 %.0f %.0f' role='img' "
            "aria-labelledby='title desc'>\n<title id='title'>",
            width, height, width, height);
    put_text(s, title, SIZE_MAX);
    fputs("</title>\n<desc id='desc'>", file);
    put_text(s, desc, SIZE_MAX);
    fprintf(file,
            "</desc>\n<style>\n%s</style>\n<defs><pattern id='hatch' width='5' height='5' patternUnits='userSpaceOnUse' "
            "patternTransform='rotate(45)'><path d='M0 0v5' stroke='#808080' stroke-width='2.4' stroke-opacity='.45'/></pattern>"
            "</defs>\n",
            style);
}

void st_svg_end(struct st_svg *s)
{
    fputs("</svg>\n", s->file);
}

void st_svg_group_open(struct st_svg *s, const char *name, const char *key, double value, const char *tooltip)
{
    char text[32];

    fputs("<g data-name='", s->file);
    put_text(s, name, SIZE_MAX);
    st_number_print(text, sizeof(text), "%.9g", value);
    fprintf(s->file, "' data-%s='%s'>", key, text);
    put_tooltip(s, tooltip);
    fputc('\n', s->file);
}

void st_svg_group_close(struct st_svg *s)
{
    fputs("</g>\n", s->file);
}

void st_svg_text(struct st_svg *s, double x, double y, const char *css, double room, const char *text)
{
    const double units = floor(room / ST_SVG_LETTER);

    if (units < 1)
        return;
    fputs("<text x='", s->file);
    put_number(s, x);
    fputs("' y='", s->file);
    put_number(s, y);
    fprintf(s->file, "' class='%s'>", css);
    put_text(s, text, (size_t)units);
    fputs("</text>\n", s->file);
}

static void put_pair(struct st_svg *s, const char *before, double a, double b)
{
    fputs(before, s->file);
    put_number(s, a);
    fputc(' ', s->file);
    put_number(s, b);
}

void st_svg_line(struct st_svg *s, double x1, double y1, double x2, double y2)
{
    put_pair(s, "<path class='line' d='M", x1, y1);
    put_pair(s, "L", x2, y2);
    fputs("'/>\n", s->file);
}

void st_svg_path_open(struct st_svg *s, const char *paint)
{
    fprintf(s->file, "<path %s d='", paint);
}

void st_svg_path_rect(struct st_svg *s, struct st_svg_box box)
{
    put_pair(s, "M", box.x, box.y);
    fputc('h', s->file);
    put_number(s, box.width);
    fputc('v', s->file);
    put_number(s, box.height);
    fputc('h', s->file);
    put_number(s, -box.width);
    fputc('z', s->file);
}

void st_svg_path_close(struct st_svg *s)
{
    fputs("'/>\n", s->file);
}

void st_svg_rect(struct st_svg *s, const char *paint, struct st_svg_box box, const char *tooltip)
{
    st_svg_path_open(s, paint);
    st_svg_path_rect(s, box);
    if (tooltip == NULL) {
        st_svg_path_close(s);
        return;
    }
    fputs("'>", s->file);
    put_tooltip(s, tooltip);
    fputs("</path>\n", s->file);
}
