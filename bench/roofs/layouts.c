/* bench/roofs/layouts.c - see bench/roofs/layouts.h. */
#include "bench/roofs/layouts.h"

#include "core/base/error.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

uint64_t bench_plane_bytes(enum bench_layout layout, enum bench_plane plane, uint64_t params)
{
    const struct bench_layout_info *const info = &bench_layouts[layout];

    switch (plane) {
    case BENCH_WEIGHT:
    case BENCH_LOW_HALF:
        return info->master == BENCH_MASTER_SPLIT ? 2 * params : 0;
    case BENCH_MASTER:
        return info->master == BENCH_MASTER_SPLIT ? 0 : 4 * params;
    case BENCH_MOMENT1:
        return st_moment_bytes(info->moments, params);
    case BENCH_MOMENT2:
        return st_rule_moments(info->rule) == 2 ? st_moment_bytes(info->moments, params) : 0;
    case BENCH_GRAD:
        return strata_dtype_bytes(info->grad_dtype) * params;
    case BENCH_COPY:
        return info->master == BENCH_MASTER_COPIED ? 2 * params : 0;
    case BENCH_PLANE_COUNT:
        break;
    }
    assert(false && "plane");
    return 0;
}

struct bench_traffic bench_layout_traffic(enum bench_layout layout, uint64_t params)
{
    struct bench_traffic traffic = {0};

    for (int plane = 0; plane < BENCH_PLANE_COUNT; plane++) {
        const uint64_t bytes = bench_plane_bytes(layout, (enum bench_plane)plane, params);

        traffic.read += plane == BENCH_COPY ? 0 : bytes;
        traffic.written += plane == BENCH_GRAD ? 0 : bytes;
    }
    return traffic;
}

bool bench_rule_divides(enum st_rule rule)
{
    return rule == ST_RULE_ADAM || rule == ST_RULE_ADAGRAD;
}

/* --- by name --- */

static strata_status unknown(const char *name, size_t length)
{
    char names[256] = "";
    size_t used = 0;

    for (int i = 0; i < BENCH_LAYOUT_COUNT; i++) {
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i == 0 ? "" : ", ", bench_layouts[i].name);
        assert(used < sizeof(names));
    }
    return st_error(STRATA_E_INVAL, "unknown layout \"%.*s\": there are %s", (int)length, name, names);
}

static strata_status choose(bool chosen[BENCH_LAYOUT_COUNT], const char *name, size_t length)
{
    for (int i = 0; i < BENCH_LAYOUT_COUNT; i++) {
        if (strlen(bench_layouts[i].name) == length && memcmp(bench_layouts[i].name, name, length) == 0) {
            chosen[i] = true;
            return STRATA_OK;
        }
    }
    return unknown(name, length < 80 ? length : 80);
}

strata_status bench_layouts_choose(bool chosen[BENCH_LAYOUT_COUNT], const char *const *words, uint32_t count)
{
    for (int i = 0; i < BENCH_LAYOUT_COUNT; i++)
        chosen[i] = count == 0;
    for (uint32_t i = 0; i < count; i++) {
        const char *at = words[i];
        strata_status st;

        do {
            const size_t length = strcspn(at, ",");

            if ((st = choose(chosen, at, length)) != STRATA_OK)
                return st;
            at += length;
        } while (*at++ == ',');
    }
    return STRATA_OK;
}
