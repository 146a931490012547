/* tests/fuzz/replay.c - main of fuzz targets outside libFuzzer: runs one on every file of a directory.
 *
 * FUZZ_TARGETS, from CMake: TARGET(name) for each; their functions are renamed fuzz_<name>. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_BYTES_MAX ((size_t)1 << 20)

typedef int fuzz_fn(const uint8_t *data, size_t size);

#define TARGET(name) fuzz_fn fuzz_##name;
FUZZ_TARGETS
#undef TARGET
#define TARGET(name) {#name, fuzz_##name},
static const struct {
    const char *name;
    fuzz_fn *run;
} targets[] = {FUZZ_TARGETS};

static fuzz_fn *find(const char *name)
{
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
        if (strcmp(targets[i].name, name) == 0)
            return targets[i].run;
    return NULL;
}

static int replay(fuzz_fn *run, const char *dir, const char *name)
{
    char path[4096];
    uint8_t *data = malloc(INPUT_BYTES_MAX);
    FILE *file;
    size_t size;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    file = fopen(path, "rb");
    if (file == NULL || data == NULL) {
        fprintf(stderr, "%s: cannot be read\n", path);
        free(data);
        return 1;
    }
    size = fread(data, 1, INPUT_BYTES_MAX, file);
    fclose(file);
    run(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    fuzz_fn *const run = argc == 3 ? find(argv[1]) : NULL;
    DIR *dir = run != NULL ? opendir(argv[2]) : NULL;
    const struct dirent *entry;
    int failed = 0, count = 0;

    if (dir == NULL) {
        fprintf(stderr, "usage: %s TARGET CORPUS_DIR\n", argv[0]);
        return 2;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        failed += replay(run, argv[2], entry->d_name);
        count++;
    }
    closedir(dir);
    printf("%d inputs\n", count);
    return failed > 0 || count == 0;
}
