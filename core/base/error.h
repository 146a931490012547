/* core/base/error.h - how a failure is reported inside the library.
 *
 *     return st_error_remedy(st_error(STRATA_E_NOFIT, "arena: %s needed, %s free", a, b),
 *                            "strata.host_memory", "lower strata.host_memory");
 *
 * Sentences name keys of the configuration and members of public structs of options (machine.device is
 * strata_machine_opts.device), never a program's options: a program prints its own beside them.
 *
 * The sentence is kept per thread.  A thread that fails on behalf of another hands over a struct st_sentence, which the other
 * one raises again; so does a thread for itself, where what follows may fail, too.
 * Our own bugs are asserts (kept in release builds), not statuses. */
#ifndef CORE_BASE_ERROR_H
#define CORE_BASE_ERROR_H

#include "strata/status.h"
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

/** Record a sentence for this thread and return `st`. */
strata_status st_error(strata_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Add the key that the failure is about ("strata.save"), at most 63 bytes; returns `st` unchanged. */
strata_status st_error_key(strata_status st, const char *key);

/** Add a remedy to the sentence, "cause: remedy", and its key; returns `st` unchanged.  A remedy without room is left out. */
strata_status st_error_remedy(strata_status st, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A sentence with its key and its remedy, as it is handed over. */
#define ST_SENTENCE_BYTES 1024
struct st_sentence {
    char text[ST_SENTENCE_BYTES];
    char key[64];
    uint32_t remedy_bytes; /* at the end of text; 0: no remedy */
};
/** Take a copy of this thread's sentence. */
void st_error_keep(struct st_sentence *kept);
/** Raise it again, on any thread; returns `st` unchanged. */
strata_status st_error_again(strata_status st, const struct st_sentence *kept);

/** st_error() for an errno value: maps it to a status and appends ": " and strerror.
 *  ENOSPC, EDQUOT, EFBIG: E_NOSPC.  ENOMEM: E_NOMEM.  ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, EROFS, ELOOP, ENAMETOOLONG:
 *  E_INPUT.  ENOSYS, EOPNOTSUPP: E_NOSYS.  EBUSY, EAGAIN: E_BUSY.  ECANCELED: E_CANCELLED.  Others: E_IO. */
strata_status st_error_errno(int err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Report that memory was refused: E_NOMEM, "no memory for 4096 bytes".  bytes 0: not known, or several blocks. */
strata_status st_nomem(uint64_t bytes);

/** Report an argument that is NULL: E_INVAL, naming function and argument. */
strata_status st_error_missing(const char *function, const char *what);

/** The system's text for an errno value; for EFBIG and EMFILE with the limit that ulimit sets, if there is one;
 *  for EMFILE and ENFILE with the remedy. */
#define ST_ERRNO_BYTES 160
const char *st_errno_text(int err, char buf[ST_ERRNO_BYTES]);

/** Put "prefix: " before the current sentence; returns `st` unchanged. */
strata_status st_error_prefix(strata_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** The status of an output that could not be begun: without room it does not fit, E_NOFIT, as nothing was done yet; E_NOSPC is a
 *  disk that fills later.  Other statuses stay what they are. */
static inline strata_status st_error_at_start(strata_status st)
{
    return st == STRATA_E_NOSPC ? STRATA_E_NOFIT : st;
}

/** What a call gave that returns -1 and sets errno when it fails: that, or the negative errno. */
static inline int64_t st_result(int64_t value)
{
    return value < 0 ? -errno : value;
}

/* A system that interrupts a call for ever must not keep us: after that many EINTR in a row it is an error like others. */
#define ST_EINTR_MAX 1000u
/** Whether a call with this result (negative errno) is made again; *interrupted: how often it was, 0 at first. */
static inline bool st_again(int64_t result, uint32_t *interrupted)
{
    return result == -EINTR && ++*interrupted < ST_EINTR_MAX;
}

/** Forget the sentence. */
void st_error_clear(void);

#endif
