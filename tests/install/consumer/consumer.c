/* A C program that knows strata from its installed tree alone. */
#include "strata/strata.h"

#include <stdio.h>
#include <string.h>

static int failures;

static void check(int holds, const char *what)
{
    if (!holds) {
        printf("consumer: not so: %s\n", what);
        failures++;
    }
}

int main(void)
{
    check(strcmp(strata_version(), STRATA_VERSION_STRING) == 0, "library and headers have one version");
    check(strcmp(strata_version(), EXPECTED_VERSION) == 0, "library and package have one version");
    check(strcmp(strata_status_text(STRATA_OK), "ok") == 0, "STRATA_OK is \"ok\"");
    check(strata_status_exit_code(STRATA_E_NOFIT) == 3, "what does not fit is exit code 3");
    check(strcmp(strata_last_error(), "") == 0, "no error yet");
    check(strata_dtype_bytes(STRATA_BF16) == 2, "bf16 has two bytes");
    printf("consumer: strata %s\n", strata_version());
    return failures;
}
