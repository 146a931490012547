/* Where NVIDIA's libraries are searched for, over stand-ins in folders like pip's and the toolkit's: which file is taken, what
 * gives way to the next, and what the error says.  The stand-ins' name is no real library's, so what this machine has does not
 * matter. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ok(call) assert_int_equal((call), STRATA_OK)

#define PIP_13  "lib/python3.12/site-packages/nvidia/cu13/lib/libstandin.so.13"
#define PIP_12  "lib/python3.12/site-packages/nvidia/cublas/lib/libstandin.so.12"
#define DIST_13 "lib64/python3.9/dist-packages/nvidia/cublas/lib/libstandin.so.13"

static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "VIRTUAL_ENV", "PATH", "HOME"};
static char command[4096];

static void run(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void run(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(command, sizeof(command), fmt, args);
    va_end(args);
    assert_int_equal(system(command), 0);
}

/* A copy, so that two of one stand-in are two files. */
static void put(const char *name, const char *of)
{
    run("mkdir -p \"$(dirname '%s/%s')\" && cp '%s' '%s/%s'", scratch_dir, name, of, scratch_dir, name);
}

/* Each test has a folder of its own, since the loader remembers the paths that it opened. */
static int before_each(void **state)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        setenv(variables[i], "/nonexistent", 1);
    setenv("PATH", "/usr/bin:/bin", 1);
    unsetenv("STRATA_CUBLASLT");
    return scratch_create(state);
}

static strata_status open_standin(struct st_blas *out, bool with_handle)
{
    struct st_library_kind kind = st_blas_library;

    kind.name = "libstandin.so";
    kind.versions[0] = 13;
    kind.versions[1] = 12;
    return st_blas_open(out, &kind, with_handle);
}

static void assert_taken(const char *name)
{
    struct st_blas blas = {0};

    ok(open_standin(&blas, true));
    assert_string_equal(blas.name, scratch_path(name));
    assert_int_equal(blas.version(), 130000);
    assert_non_null(blas.handle);
    st_blas_close(&blas);
    assert_null(blas.library);
}

static void assert_refused(const char *first, const char *second)
{
    struct st_blas blas = {0};

    assert_int_equal(open_standin(&blas, true), STRATA_E_NOSYS);
    assert_null(blas.library);
    if (strstr(strata_last_error(), first) == NULL || strstr(strata_last_error(), second) == NULL)
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", strata_last_error(), first, second);
}

TEST_SETUP(the_builds_own_major_is_first, before_each, scratch_remove)
{
    assert_int_equal(st_blas_library.versions[0], CUDART_VERSION / 1000);
    assert_string_equal(st_blas_library.name, "libcublasLt.so");
    put("env/" PIP_12, STANDIN_GOOD);
    put("env/" PIP_13, STANDIN_GOOD);
    setenv("VIRTUAL_ENV", scratch_path("env"), 1);
    assert_taken("env/" PIP_13);
}

TEST_SETUP(every_place_is_searched, before_each, scratch_remove)
{
    static const struct {
        const char *variable, *value, *file;
    } places[] = {
        {"VIRTUAL_ENV", "env", "env/" PIP_13},
        {"VIRTUAL_ENV", "e[n]v *", "e[n]v */" PIP_13}, /* what a pattern would read otherwise */
        {"CONDA_PREFIX", "conda", "conda/" DIST_13},
        {"CONDA_PREFIX", "conda", "conda/lib/libstandin.so.13"},
        {"CONDA_PREFIX", "conda", "conda/targets/x86_64-linux/lib/libstandin.so.13"},
        {"CUDA_HOME", "cuda", "cuda/lib64/libstandin.so.12"},
        {"CUDA_PATH", "cuda", "cuda/targets/sbsa-linux/lib/libstandin.so.13"},
        {"HOME", "home", "home/.local/" PIP_13},
    };

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        assert_int_equal(scratch_remove(state) + before_each(state), 0);
        put(places[i].file, STANDIN_GOOD);
        assert_refused("libstandin.so.13: cannot open", "libstandin.so.12: cannot open");
        setenv(places[i].variable, scratch_path(places[i].value), 1);
        assert_taken(places[i].file);
    }
}

/* PATH leads to a link, that to an environment's python, and that to the system's: the packages are the environment's. */
TEST_SETUP(the_python_on_path_names_its_packages, before_each, scratch_remove)
{
    char path[4200];

    put("env/" PIP_13, STANDIN_GOOD);
    run("mkdir -p '%s/tools' '%s/env/bin' '%s/system/bin'", scratch_dir, scratch_dir, scratch_dir);
    run("printf '#!/bin/sh\\nexit 1\\n' >'%s/system/bin/python3.12' && chmod +x '%s/system/bin/python3.12'", scratch_dir,
        scratch_dir);
    run("cd '%s' && ln -s ../../system/bin/python3.12 env/bin/python3 && ln -s '%s/env/bin/python3' tools/python3", scratch_dir,
        scratch_dir);
    snprintf(path, sizeof(path), "relative::%s/nothing:%s/tools:/usr/bin:/bin", scratch_dir, scratch_dir);
    setenv("PATH", path, 1);
    assert_taken("env/" PIP_13);
    run("rm -r '%s/env' && ln -sfn python3 '%s/tools/python3'", scratch_dir, scratch_dir); /* a link to itself */
    snprintf(path, sizeof(path), "%s/tools", scratch_dir);
    setenv("PATH", path, 1);
    assert_refused("tried", "libstandin.so.13");
    setenv("PATH", "/usr/bin:/bin", 1);
}

/* Each gives way to the next: no ELF file, one without a function, one whose handle cannot be made. */
TEST_SETUP(what_cannot_be_used_gives_way, before_each, scratch_remove)
{
    put("cuda/lib64/libstandin.so.13", STANDIN_LACKING);
    put("cuda/targets/any/lib/libstandin.so.13", STANDIN_BROKEN);
    run("echo no library >'%s/cuda/lib64/libstandin.so.12'", scratch_dir);
    setenv("CUDA_HOME", scratch_path("cuda"), 1);
    assert_refused("has no cublasLtCreate", "cublasLtCreate of");
    assert_refused("returned status 1", "STRATA_CUBLASLT");
    assert_refused("cuda/lib64/libstandin.so.12: ", "file too short");
    put("env/" PIP_12, STANDIN_GOOD);
    setenv("VIRTUAL_ENV", scratch_path("env"), 1);
    assert_taken("env/" PIP_12);
    put("env/" PIP_13, STANDIN_GOOD);
    assert_taken("env/" PIP_13);
}

/* A report names a library of a machine without a GPU, where no handle can be made. */
TEST_SETUP(a_library_can_be_named_without_a_handle, before_each, scratch_remove)
{
    struct st_blas blas = {0};

    put("env/" PIP_13, STANDIN_BROKEN);
    setenv("VIRTUAL_ENV", scratch_path("env"), 1);
    ok(open_standin(&blas, false));
    assert_string_equal(blas.name, scratch_path("env/" PIP_13));
    assert_null(blas.handle);
    st_blas_close(&blas);
    st_blas_close(&blas);
}

/* One file under several names is tried once. */
TEST_SETUP(a_file_is_tried_once, before_each, scratch_remove)
{
    const char *first;

    put("cuda/lib64/libstandin.so.13", STANDIN_BROKEN);
    run("cd '%s/cuda' && ln -s lib64/libstandin.so.13 same && mkdir -p targets/any/lib && ln -s ../../../same "
        "targets/any/lib/libstandin.so.13",
        scratch_dir);
    setenv("CUDA_HOME", scratch_path("cuda"), 1);
    setenv("CUDA_PATH", scratch_path("cuda"), 1);
    assert_refused("returned status 1", "cublasLtCreate");
    first = strstr(strata_last_error(), "returned status 1");
    assert_null(strstr(first + 1, "returned status 1"));
}

TEST_SETUP(the_file_that_is_asked_for_is_the_only_one, before_each, scratch_remove)
{
    put("env/" PIP_13, STANDIN_GOOD);
    put("broken.so", STANDIN_BROKEN);
    setenv("VIRTUAL_ENV", scratch_path("env"), 1);
    setenv("STRATA_CUBLASLT", scratch_path("broken.so"), 1);
    assert_refused("STRATA_CUBLASLT names", "broken.so returned status 1");
    setenv("STRATA_CUBLASLT", scratch_path("missing.so"), 1);
    assert_refused("missing.so", "there is no such file");
    setenv("STRATA_CUBLASLT", "", 1);
    assert_taken("env/" PIP_13);
}

/* Opening, searching and making the handle, each refused. */
TEST_SETUP(every_refusal_is_told, before_each, scratch_remove)
{
    static const char *const sites[] = {"cuda.blas", "cuda.search", "cuda.blas_create"};

    put("env/" PIP_13, STANDIN_GOOD);
    setenv("VIRTUAL_ENV", scratch_path("env"), 1);
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .count = 0, .result = -1});
        assert_refused("libstandin.so.13", "tried");
        assert_true(st_fault_disarm() > 0);
    }
    assert_taken("env/" PIP_13);
}
