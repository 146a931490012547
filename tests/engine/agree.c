/* tests/engine/agree.c - see agree.h. */
#include "agree.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct rig_result rig_agree(const struct rig_cell *cells, size_t count, uint32_t steps, const char *nvme_dir)
{
    struct rig_result first = {0};

    for (size_t i = 0; i < count; i++) {
        struct rig_result r;
        char text[RIG_TEXT];

        if (rig_run(&r, &cells[i], steps, nvme_dir) != STRATA_OK || !r.planned)
            fail_msg("%s: %s", rig_cell_text(text, &cells[i]), strata_last_error());
        assert_memory_equal(&r.planned_bytes, &r.moved_bytes, sizeof(r.moved_bytes));
        if (i == 0)
            first = r;
        if (memcmp(first.losses, r.losses, sizeof(r.losses)) != 0 || strcmp(first.weights, r.weights) != 0 ||
            strcmp(first.state, r.state) != 0)
            fail_msg("other bits: %s", rig_cell_text(text, &cells[i]));
    }
    return first;
}

static char temporary_dir[] = "/tmp/strata-engine-XXXXXX";

int rig_dir_make(void **state)
{
    (void)state;
    return mkdtemp(temporary_dir) == NULL;
}

int rig_dir_remove(void **state)
{
    (void)state;
    return rmdir(temporary_dir);
}

const char *rig_dir(void)
{
    return temporary_dir;
}
