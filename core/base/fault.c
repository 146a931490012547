/* core/base/fault.c - one armed fault for the whole process.
 *
 * fault_armed is the only thing an unarmed site reads; everything else is guarded by fault_lock. */
#include "core/base/fault.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_SITE_BYTES 64
#define FAULT_SITES_MAX  256u

static atomic_bool fault_armed; /* written under fault_lock; a site that reads it late misses a fault and does no other harm */
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static struct st_fault_spec fault_spec;
static uint32_t fault_passed, fault_fired;
static char fault_site[FAULT_SITE_BYTES];
static struct st_fault_tally fault_tallies[FAULT_SITES_MAX]; /* of sites passed while armed, in order of first pass */
static uint32_t fault_tally_count;

static struct st_fault_tally *fault_tally(const char *site)
{
    for (uint32_t i = 0; i < fault_tally_count; i++)
        if (strcmp(fault_tallies[i].site, site) == 0)
            return &fault_tallies[i];
    assert(fault_tally_count < FAULT_SITES_MAX);
    fault_tallies[fault_tally_count] = (struct st_fault_tally){.site = site};
    return &fault_tallies[fault_tally_count++];
}

static bool fault_matches(const char *site)
{
    return fault_spec.site == NULL || strcmp(fault_spec.site, site) == 0;
}

static int64_t fault_slow(const char *site, int64_t result)
{
    struct st_fault_tally *tally;

    pthread_mutex_lock(&fault_lock);
    tally = fault_tally(site);
    tally->passed++;
    if (atomic_load_explicit(&fault_armed, memory_order_relaxed) && fault_matches(site)) {
        if (fault_passed < fault_spec.after) {
            fault_passed++;
        } else if (fault_spec.count == 0 || fault_fired < fault_spec.count) {
            if (fault_spec.kill)
                (void)raise(SIGKILL);
            fault_fired++;
            tally->fired++;
            result = fault_spec.result;
        }
    }
    pthread_mutex_unlock(&fault_lock);
    return result;
}

int64_t st_fault(const char *site, int64_t result)
{
    if (!atomic_load_explicit(&fault_armed, memory_order_relaxed))
        return result;
    return fault_slow(site, result);
}

bool st_fault_refuses(const char *site)
{
    const int64_t res = st_fault(site, 0);

    if (res < 0)
        errno = (int)-res;
    return res < 0;
}

void st_fault_arm(const struct st_fault_spec *spec)
{
    pthread_mutex_lock(&fault_lock);
    fault_spec = *spec;
    fault_passed = 0;
    fault_fired = 0;
    fault_tally_count = 0;
    atomic_store_explicit(&fault_armed, true, memory_order_relaxed);
    pthread_mutex_unlock(&fault_lock);
}

uint32_t st_fault_disarm(void)
{
    uint32_t fired;

    pthread_mutex_lock(&fault_lock);
    fired = fault_fired;
    fault_fired = 0;
    atomic_store_explicit(&fault_armed, false, memory_order_relaxed);
    pthread_mutex_unlock(&fault_lock);
    return fired;
}

bool st_fault_tally_at(struct st_fault_tally *out, uint32_t index)
{
    bool found;

    pthread_mutex_lock(&fault_lock);
    found = index < fault_tally_count;
    if (found)
        *out = fault_tallies[index];
    pthread_mutex_unlock(&fault_lock);
    return found;
}

/* ":number" at *text, if there is one; without a number *out is left alone. */
static int fault_parse_number(const char **text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    long long value;

    if (**text == '\0')
        return 0;
    if (**text != ':')
        return -1;
    errno = 0;
    value = strtoll(*text + 1, &end, 10);
    if (errno != 0 || end == *text + 1 || value < least || value > most)
        return -1;
    *out = value;
    *text = end;
    return 0;
}

int st_fault_arm_text(const char *text)
{
    int64_t after = 0, count = 0, result = -EIO;
    size_t length = strcspn(text, ":");
    const char *rest = text + length;
    bool kill;

    if (length == 0 || length >= FAULT_SITE_BYTES)
        return -1;
    if (fault_parse_number(&rest, 0, UINT32_MAX, &after) != 0 || fault_parse_number(&rest, 0, UINT32_MAX, &count) != 0)
        return -1;
    kill = strcmp(rest, ":kill") == 0;
    if (!kill && (fault_parse_number(&rest, INT64_MIN, INT64_MAX, &result) != 0 || *rest != '\0'))
        return -1;
    st_fault_disarm();
    memcpy(fault_site, text, length);
    fault_site[length] = '\0';
    st_fault_arm(&(struct st_fault_spec){
        .site = strcmp(fault_site, "*") == 0 ? NULL : fault_site,
        .after = (uint32_t)after,
        .count = (uint32_t)count,
        .result = result,
        .kill = kill,
    });
    return 0;
}
