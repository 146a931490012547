/* core/base/fault.h - named places where tests make the world fail.
 *
 * Every foreign call passes its result through a site; unarmed cost is one relaxed load.
 *     res = st_fault("nvme.cqe", res);          int results: negative errno or bytes
 *     if (st_fault("arena.mmap", 0) < 0) ...    "would this fail?" form
 *     if (st_fault_refuses("file.target") || lstat(...) != 0) ...    the same, where the caller looks at errno
 * Tests arm one fault at a time, for the whole process.  The STRATA_FAULT environment variable is not read: `strata --fault
 * SITE[:after[:count[:result]]]` (hidden, for tests) arms one from the command line.  SITE * matches any site, and at the end the
 * program says which one fired.  SITE ? matches none and lists the sites that were passed.  Result "kill": the process ends there
 * by SIGKILL, which shows what it leaves behind. */
#ifndef CORE_BASE_FAULT_H
#define CORE_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

struct st_fault_spec {
    const char *site; /* borrowed while armed; NULL: any site */
    uint32_t after;   /* let this many passes of matching sites through first */
    uint32_t count;   /* then make this many fail; 0: all */
    int64_t result;   /* what the site returns instead (e.g. -EIO, or a short byte count) */
    bool kill;        /* the site ends the process instead */
};

int64_t st_fault(const char *site, int64_t result);
/** True: the caller must not make the call behind this site; errno says why. */
bool st_fault_refuses(const char *site);
void st_fault_arm(const struct st_fault_spec *spec);
/** Disarm; returns how many times it fired. */
uint32_t st_fault_disarm(void);
/* What one site has seen since the last arming. */
struct st_fault_tally {
    const char *site; /* a literal */
    uint32_t passed, fired;
};
/** False past the last one. */
bool st_fault_tally_at(struct st_fault_tally *out, uint32_t index);
/** Parse "site[:after[:count[:result]]]", result a number or "kill", and arm; the string is copied. 0 or -1 on syntax. */
int st_fault_arm_text(const char *text);

#endif
