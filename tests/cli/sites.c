/* sites.c - see sites.h. */
#include "tests/cli/sites.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

unsigned long sites_read(struct site *sites, const char *text)
{
    unsigned long count = 0, fired;

    for (const char *at = strstr(text, "fault: "); at != NULL; at = strstr(at + 1, "fault: ")) {
        assert_true(count < SITES_MAX);
        if (sscanf(at, "fault: %63s passed %lu fired %lu", sites[count].name, &sites[count].passed, &fired) == 3)
            count++;
    }
    return count;
}

unsigned long sites_pass(const struct site *site, unsigned long k, unsigned long wanted)
{
    return k * (site->passed - 1) / (wanted - 1);
}
