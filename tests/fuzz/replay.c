/* tests/fuzz/replay.c - main of a fuzz target outside libFuzzer: runs it on every file of a directory. */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#define INPUT_BYTES_MAX ((size_t)1 << 20)

static int replay(const char *dir, const char *name)
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
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    const struct dirent *entry;
    int failed = 0, count = 0;

    if (dir == NULL) {
        fprintf(stderr, "usage: %s CORPUS_DIR\n", argv[0]);
        return 2;
    }
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        failed += replay(argv[1], entry->d_name);
        count++;
    }
    closedir(dir);
    printf("%d inputs\n", count);
    return failed > 0 || count == 0;
}
