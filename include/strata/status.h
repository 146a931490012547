/* strata/status.h - the result codes of all calls, and the sentence that explains the last error.
 *
 * A call returns STRATA_OK (0) or a negative status.  Outputs are written only on success.
 * strata_last_error() is this thread's sentence: file, value, limit and remedy.  strata_error_key() and strata_error_remedy() are
 * parts of it, for programs that name their own arguments. */
#ifndef STRATA_STATUS_H
#define STRATA_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define STRATA_API __attribute__((visibility("default")))
#else
#define STRATA_API
#endif

/* On a type: the compiler warns if a returned value of the type is not used. */
#if defined(__clang__)
#define STRATA_MUST_USE __attribute__((warn_unused_result))
#elif defined(__GNUC__)
#define STRATA_MUST_USE [[nodiscard]]
#else
#define STRATA_MUST_USE
#endif

/* name, value, process exit code, text.  Values are ABI: append, never renumber. */
/* clang-format off */
#define STRATA_STATUS_MAP(X)                                                  \
    X(OK,            0,   0, "ok")                                            \
    X(E_INVAL,      -1,   2, "invalid argument")                              \
    X(E_NOMEM,      -2,   3, "out of host memory")                            \
    X(E_DEVICE_OOM, -3,   3, "out of device memory")                          \
    X(E_BUSY,       -4,   4, "resource pinned or queue full")                 \
    X(E_IO,         -5,   4, "I/O error")                                     \
    X(E_TRUNC,      -6,   4, "file shorter than expected")                    \
    X(E_CORRUPT,    -7,   4, "checksum or format mismatch in strata's files") \
    X(E_NOSYS,      -8,   2, "not supported by this machine or build")        \
    X(E_CONFIG,     -9,   2, "bad configuration")                             \
    X(E_INPUT,     -10,   2, "bad input file")                                \
    X(E_NOFIT,     -11,   3, "does not fit")                                  \
    X(E_NOSPC,     -12,   4, "no space left on disk")                         \
    X(E_NUMERICS,  -13,   5, "numerics")                                      \
    X(E_CANCELLED, -14, 130, "cancelled")                                     \
    X(E_INTERNAL,  -15,   1, "internal error")

#ifdef __GNUC__
__extension__ /* C before C23 has no [[ ]] */
#endif
typedef enum STRATA_MUST_USE strata_status {
#define STRATA_X(name, value, exit_code, text) STRATA_##name = (value),
    STRATA_STATUS_MAP(STRATA_X)
#undef STRATA_X
} strata_status;
/* clang-format on */

/** Short text of a status, e.g. "I/O error".  Never NULL; borrowed, static. */
STRATA_API const char *strata_status_text(strata_status st);

/** Process exit code that belongs to a status: 0 done, 1 internal, 2 usage or input,
 *  3 does not fit, 4 I/O, 5 numerics, 130 cancelled. */
STRATA_API int strata_status_exit_code(strata_status st);

/** This thread's last error sentence.  Never NULL, "" if none; borrowed until the next failure. */
STRATA_API const char *strata_last_error(void);

/** What that error is about: a key of the configuration ("strata.host_memory"), or a member of a public struct of options
 *  ("machine.device" is strata_machine_opts.device).  Never NULL, "" if not known; borrowed until the next failure. */
STRATA_API const char *strata_error_key(void);

/** What would help: the end of strata_last_error() behind "cause: ".  Never NULL, "" if it has none; borrowed likewise. */
STRATA_API const char *strata_error_remedy(void);

#ifdef __cplusplus
}
#endif
#endif
