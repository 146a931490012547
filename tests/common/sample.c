/* tests/common/sample.c - see sample.h. */
#include "tests/common/sample.h"

#include <string.h>

static bool all = true;

void sample_init(int argc, char **argv)
{
    all = argc > 1 && strcmp(argv[1], "--all") == 0;
}

bool sample_is_all(void)
{
    return all;
}

bool sample_takes(uint64_t index, uint64_t every, uint64_t first)
{
    return all || index % every == first % every;
}
