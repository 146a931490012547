/* fuzz_rows.c - any bytes as a file of rows, read as every format, as dataset_info.json and as the YAML of version 1's sets: no
 * crash; a row is a conversation, a text or is left out; counting finds as many rows as reading. */
#include "tests/fuzz/fuzz.h"
#include "text/data/rows/dataset_info.h"
#include "text/data/rows/row_columns.h"
#include "text/data/rows/row_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void read_as(const struct st_row_shape *shape, const st_json *row, const char *place)
{
    enum st_row_odd odd;
    struct st_sample s;
    const strata_status st = st_row_read(&s, &odd, shape, row, place);

    check(st == STRATA_OK || st == STRATA_E_INPUT);
    check(st != STRATA_OK || odd != ST_ROW_FINE || (s.text == NULL) != (s.messages == NULL));
    st_sample_free(&s);
}

static void note_columns(const st_json *row, const char *place)
{
    struct st_row_unread unread = {0};

    for (unsigned format = ST_ROWS_AUTO; format < ST_ROWS_FORMATS; format++) {
        const struct st_row_shape shape = st_row_shape_of((enum st_row_format)format);
        const strata_status st = st_row_check_columns(&shape, row, place);

        check(st == STRATA_OK || st == STRATA_E_INPUT);
        st_row_note_columns(&unread, &shape, row);
    }
    check(unread.count <= ST_ROW_UNREAD_MAX && unread.row == ST_ROWS_FORMATS);
}

static void read_rows(const char *path, const struct st_row_shape *named)
{
    uint64_t count = 0, counted;
    struct st_rows *r;
    st_json *row;
    strata_status st;

    check(st_rows_open(&r, path) == STRATA_OK);
    while (((st = st_rows_next(r, &row)) == STRATA_OK && row != NULL) || st_rows_goes_on(r)) {
        struct st_row_shape shape;

        check(st == STRATA_OK || row == NULL);
        count++;
        if (row == NULL)
            continue;
        if (st_json_type(row) == ST_JSON_OBJECT)
            note_columns(row, st_rows_place(r));
        if (st_row_shape_guess(&shape, row, st_rows_place(r)) == STRATA_OK)
            read_as(&shape, row, st_rows_place(r));
        for (unsigned format = ST_ROWS_TEXT; format < ST_ROWS_FORMATS; format++) {
            shape = st_row_shape_of((enum st_row_format)format);
            read_as(&shape, row, st_rows_place(r));
        }
        if (named != NULL)
            read_as(named, row, st_rows_place(r));
        st_json_free(row);
    }
    check(st == STRATA_OK || st == STRATA_E_INPUT);
    st_rows_close(r);
    check(st_rows_open(&r, path) == STRATA_OK);
    check(st_rows_count(r, &counted) == st && counted == count);
    st_rows_close(r);
}

/* The same under a name that says that an object may be around all rows. */
static void read_json(const char *path)
{
    char dir[] = "/tmp/fuzz_rows_XXXXXX", json[64];

    check(mkdtemp(dir) != NULL);
    snprintf(json, sizeof(json), "%s/rows.json", dir);
    check(symlink(path, json) == 0);
    read_rows(json, NULL);
    check(unlink(json) == 0 && rmdir(dir) == 0);
}

/* The same as data sets of LLaMA-Factory's version 1, whose file is YAML by its name. */
static void read_sets(const char *path)
{
    char dir[] = "/tmp/fuzz_sets_XXXXXX", yaml[64];
    struct st_dataset dataset;
    strata_status st;

    check(mkdtemp(dir) != NULL);
    snprintf(yaml, sizeof(yaml), "%s/sets.yaml", dir);
    check(symlink(path, yaml) == 0);
    st = st_dataset_open(&dataset, yaml, "a");
    check(st == STRATA_OK || st == STRATA_E_INPUT);
    check((dataset.info != NULL) == (st == STRATA_OK) && (dataset.path[0] != '\0') == (st == STRATA_OK));
    if (st == STRATA_OK)
        read_rows(path, &dataset.shape);
    st_dataset_close(&dataset);
    check(unlink(yaml) == 0 && rmdir(dir) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("rows", 0);
    struct st_dataset dataset;
    bool named;
    char path[32];

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    named = st_dataset_open(&dataset, path, "a") == STRATA_OK;
    read_rows(path, named ? &dataset.shape : NULL);
    read_json(path);
    read_sets(path);
    if (named)
        st_dataset_close(&dataset);
    close(fd);
    return 0;
}
