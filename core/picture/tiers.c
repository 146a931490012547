/* tiers.c - see core/picture/tiers.h. */
#include "core/picture/tiers.h"

#include "core/base/size.h"

#include <math.h>
#include <stdio.h>

#define LEFT        24.0
#define HEAD        40.0 /* two lines above a column */
#define COLUMN      240.0
#define BAR         92.0
#define LEADER      26.0 /* from a column to the names of its parts */
#define LINE        15.0 /* between two of them */
#define FOOT        14.0
#define LEAST_SHOWN 0.75 /* pixels */
#define TEXT        160
#define PARTS_MAX   (ST_TIER_ITEMS_MAX + 2)

struct column {
    const struct st_tier_column *tier;
    double x, y, height, room; /* of the bar; room: for names */
    double scale;              /* pixels of a byte */
};

double st_tiers_height(const struct st_tier_column *columns, uint32_t count)
{
    double height = COLUMN;

    for (uint32_t i = 0; i < count; i++)
        height = fmax(height, LINE * (columns[i].count + 1)); /* and what is free */
    return HEAD + height + FOOT;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t lacks(const struct st_tier_column *tier)
{
    return tier->needed > tier->capacity ? tier->needed - tier->capacity : 0;
}

static void draw_head(struct st_svg *svg, const struct column *c)
{
    char size[24], needed[24], least[24], text[TEXT];

    snprintf(text, sizeof(text), "%.60s: %s", c->tier->name, st_size_text(size, c->tier->capacity));
    st_svg_text(svg, c->x, c->y - 24, "title", BAR + c->room, text);
    if (lacks(c->tier) > 0)
        snprintf(text, sizeof(text), "%s lacking", st_size_text(needed, lacks(c->tier)));
    else if (c->tier->needed == 0)
        snprintf(text, sizeof(text), "unused");
    else if (c->tier->count > 0)
        snprintf(text, sizeof(text), "%s used; the smallest plan needs %s", st_size_text(needed, c->tier->needed),
                 st_size_text(least, c->tier->least));
    else
        snprintf(text, sizeof(text), "enough");
    st_svg_text(svg, c->x, c->y - 9, "label", BAR + c->room, text);
}

/* The middles of the parts, from the top, moved apart so that each has a line for its name. */
static void spread(double *at, uint32_t count, double top, double bottom)
{
    for (uint32_t i = 0; i < count; i++)
        at[i] = fmax(at[i], i == 0 ? top + LINE / 2 : at[i - 1] + LINE);
    for (uint32_t i = count; i-- > 0;)
        at[i] = fmin(at[i], i + 1 == count ? bottom - LINE / 2 : at[i + 1] - LINE);
}

struct part {
    const char *name, *paint; /* paint: NULL: none */
    uint64_t bytes, told;     /* that it is high, and that its name says */
};

/* From the top: what is free or lacks, then the rows in reverse order, so that the first lies at the bottom. */
static uint32_t parts_of(const struct st_tier_column *tier, struct part parts[PARTS_MAX])
{
    const uint64_t left = tier->capacity > tier->needed ? tier->capacity - tier->needed : 0;
    uint32_t count = 0;

    if (left > 0)
        parts[count++] = (struct part){"free", NULL, left, left};
    if (tier->count == 0 && lacks(tier) > 0)
        parts[count++] = (struct part){"lacking", "class='lacks'", lacks(tier), lacks(tier)};
    if (tier->count == 0 && tier->needed > 0)
        parts[count++] = (struct part){"needed at least", "class='held'", tier->needed - lacks(tier), tier->needed};
    for (uint32_t i = tier->count; i-- > 0;)
        if (tier->items[i].bytes > 0)
            parts[count++] = (struct part){tier->items[i].name, tier->items[i].paint, tier->items[i].bytes, tier->items[i].bytes};
    return count;
}

static void draw_parts(struct st_svg *svg, const struct column *c)
{
    struct part parts[PARTS_MAX];
    double middle[PARTS_MAX], at[PARTS_MAX], y = c->y;
    const uint32_t count = parts_of(c->tier, parts);
    char size[24], text[TEXT];

    for (uint32_t i = 0; i < count; i++) {
        const double height = (double)parts[i].bytes * c->scale;

        snprintf(text, sizeof(text), "%.100s: %s", parts[i].name, st_size_text(size, parts[i].told));
        if (parts[i].paint != NULL)
            st_svg_rect(svg, parts[i].paint, (struct st_svg_box){c->x, y, BAR, fmax(height, LEAST_SHOWN)}, text);
        middle[i] = at[i] = y + height / 2;
        y += height;
    }
    spread(at, count, c->y, c->y + c->height);
    for (uint32_t i = 0; i < count; i++) {
        snprintf(text, sizeof(text), "%.60s %s", parts[i].name, st_size_text(size, parts[i].told));
        st_svg_line(svg, c->x + BAR + 2, middle[i], c->x + BAR + LEADER - 4, at[i]);
        st_svg_text(svg, c->x + BAR + LEADER, at[i] + 4, "label", c->room - LEADER, text);
    }
}

void st_tiers_draw(struct st_svg *svg, const struct st_tier_column *columns, uint32_t count, double y)
{
    const double width = (svg->width - 2 * LEFT) / fmax(count, 1), height = st_tiers_height(columns, count) - HEAD - FOOT;

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t whole = larger(larger(columns[i].capacity, columns[i].needed), 1);
        const struct column c = {&columns[i], LEFT + i * width, y + HEAD, height, width - BAR - 12, height / (double)whole};

        st_svg_group_open(svg, columns[i].name, "bytes", (double)columns[i].needed, NULL);
        st_svg_rect(svg, "class='ground'", (struct st_svg_box){c.x, c.y, BAR, c.height}, NULL);
        draw_head(svg, &c);
        draw_parts(svg, &c);
        st_svg_group_close(svg);
    }
}
