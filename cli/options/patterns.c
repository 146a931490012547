/* cli/options/patterns.c - see patterns.h. */
#include "cli/options/patterns.h"
#include "cli/options/args_values.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "core/system/hub_id.h"
#include "core/system/path.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILES_MOST 65536u /* of one pattern, as many as strata_data_open() takes */

static strata_status find_pattern(bool *is_pattern, const char *name)
{
    bool there = false;
    strata_status st;

    *is_pattern = name != NULL && strpbrk(name, "*?[") != NULL;
    if (!*is_pattern)
        return STRATA_OK;
    st = st_file_find(&there, name);
    *is_pattern = !there;
    return st;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files' names, which args owns from then on, behind those of `out`. */
static strata_status take_files(struct cli_args *args, struct cli_list *out, const glob_t *found)
{
    strata_status st = STRATA_OK;

    qsort(found->gl_pathv, found->gl_pathc, sizeof(found->gl_pathv[0]), compare_names);
    for (size_t i = 0; i < found->gl_pathc && st == STRATA_OK; i++) {
        char *name = strdup(found->gl_pathv[i]);

        if (name == NULL)
            return st_nomem(0);
        if ((st = cli_list_push(&args->matched, name)) != STRATA_OK) {
            free(name);
            return st;
        }
        st = cli_list_push(out, name);
    }
    return st;
}

static strata_status match(struct cli_args *args, struct cli_list *out, const char *pattern)
{
    glob_t found = {0};
    strata_status st;
    int rc;

    if (strstr(pattern, "**") != NULL)
        return st_error(STRATA_E_INVAL, "%s: \"**\" is not supported: name each level, as in 'data/*/*.jsonl'", pattern);
    rc = st_fault_refuses("patterns.glob") ? GLOB_ABORTED : glob(pattern, GLOB_ERR | GLOB_NOSORT, NULL, &found);
    if (rc == GLOB_NOMATCH)
        st = st_error(STRATA_E_INPUT, "%s: no file matches", pattern);
    else if (rc != 0)
        st = st_error(rc == GLOB_NOSPACE ? STRATA_E_NOMEM : STRATA_E_INPUT, "%s: %s", pattern,
                      rc == GLOB_NOSPACE ? "out of memory" : "a directory cannot be read");
    else if (found.gl_pathc > FILES_MOST)
        st = st_error(STRATA_E_INPUT, "%s: %zu files match, and at most %u are taken: join them", pattern, found.gl_pathc,
                      FILES_MOST);
    else
        st = take_files(args, out, &found);
    globfree(&found);
    return st;
}

#define CONVERT(load) "python -c \"from datasets import *; " load ".to_json('rows.jsonl')\""

static bool holds(const char *dir, const char *pattern)
{
    char path[ST_PATH_MAX];
    glob_t found = {0};
    bool any;

    if (snprintf(path, sizeof(path), "%s/%s", dir, pattern) >= (int)sizeof(path) || st_fault_refuses("patterns.glob"))
        return false;
    any = glob(path, GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* Directories of tables, which datasets makes rows of; OK: it is none. */
static strata_status refuse_tables(const char *dir)
{
    static const char *const parquet[] = {"*.parquet", "data/*.parquet", "*/*.parquet"}, *const arrow[] = {"*.arrow",
                                                                                                           "*/*.arrow"};

    for (size_t i = 0; i < sizeof(parquet) / sizeof(parquet[0]); i++)
        if (holds(dir, parquet[i]))
            return st_error(
                STRATA_E_INPUT,
                "%s: its parquet files are not read: " CONVERT("load_dataset('%s', split='train')") " makes rows of them", dir,
                dir);
    for (size_t i = 0; i < sizeof(arrow) / sizeof(arrow[0]); i++)
        if (holds(dir, arrow[i]))
            return st_error(STRATA_E_INPUT,
                            "%s: its arrow files are not read: " CONVERT("load_from_disk('%s')%s") " makes rows of them", dir,
                            dir, i == 0 ? "" : "['train']");
    return STRATA_OK;
}

/* ORG/NAME, where no directory ORG is: a data set of the Hub, in its cache or not. */
static bool is_of_hub(const char *name)
{
    char org[ST_PATH_MAX];
    struct stat info;

    return st_hub_is_id(name) && strchr(strchr(name, '/'), '.') == NULL && st_path_dir(org, name) == STRATA_OK &&
           !st_fault_refuses("patterns.stat") && stat(org, &info) != 0;
}

/* A directory's files are named by a pattern. */
static strata_status push_file(struct cli_list *out, const char *name)
{
    struct stat info;
    strata_status st;

    if (name != NULL && is_of_hub(name))
        return st_error(STRATA_E_INPUT,
                        "%s: no such file, and nothing is downloaded: of a data set of the Hub " CONVERT(
                            "load_dataset('%s', split='train')") " makes rows",
                        name, name);
    if (name == NULL || st_fault_refuses("patterns.stat") || stat(name, &info) != 0 || !S_ISDIR(info.st_mode))
        return cli_list_push(out, name);
    if ((st = refuse_tables(name)) != STRATA_OK)
        return st;
    return st_error(STRATA_E_INPUT, "%s is a directory, not a file: '%.*s/*.jsonl', in quotes, names the rows in it", name,
                    (int)st_path_length(name), name);
}

static strata_status expand(struct cli_args *args, struct cli_list *list)
{
    struct cli_list all = {0};
    strata_status st = STRATA_OK;
    bool is_pattern;

    for (uint32_t i = 0; i < list->count && st == STRATA_OK; i++) {
        st = find_pattern(&is_pattern, list->items[i]);
        if (st == STRATA_OK)
            st = is_pattern ? match(args, &all, list->items[i]) : push_file(&all, list->items[i]);
    }
    if (st != STRATA_OK) {
        free(all.items);
        return st;
    }
    free(list->items);
    *list = all;
    return STRATA_OK;
}

static strata_status expand_one(struct cli_args *args, const char **name)
{
    struct cli_list all = {0};
    bool is_pattern;
    strata_status st = find_pattern(&is_pattern, *name);

    if (st == STRATA_OK && *name != NULL)
        st = is_pattern ? match(args, &all, *name) : push_file(&all, *name);
    if (all.count > 1)
        st = st_error(STRATA_E_INPUT, "--eval-data %s: %u files match, and it takes one: join them, or make a token file of them",
                      *name, all.count);
    else if (all.count == 1)
        *name = all.items[0];
    free(all.items);
    return st;
}

strata_status cli_patterns_expand(struct cli_args *args)
{
    strata_status st = expand(args, &args->data);

    if (st == STRATA_OK && args->command == CLI_CMD_TOKENS)
        st = expand(args, &args->positional);
    return st == STRATA_OK ? expand_one(args, &args->eval_data) : st;
}
