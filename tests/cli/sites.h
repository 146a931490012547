/* tests/cli/sites.h - the fault sites that a run has passed, from what `--fault ?` prints. */
#ifndef TESTS_CLI_SITES_H
#define TESTS_CLI_SITES_H

#define SITES_MAX 256

struct site {
    char name[64];
    unsigned long passed;
};

/** @param sites  [SITES_MAX], out  @return how many */
unsigned long sites_read(struct site *sites, const char *text);
/** Pass number k of those wanted, from the first to the last of the site's; more than one is wanted. */
unsigned long sites_pass(const struct site *site, unsigned long k, unsigned long wanted);

#endif
