/* fuzz_token_meta.c - any bytes as what lies beside a token file: no crash; every window of what is accepted holds tokens of the
 * vocabulary, and targets and positions that an engine takes. */
#include "core/base/checksum.h"
#include "text/data/tokens.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VOCAB = 300, SEQ = 5, TOKENS = 24 };

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void write_whole(const char *path, const void *bytes, size_t count)
{
    const int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);

    check(fd >= 0 && write(fd, bytes, count) == (ssize_t)count);
    close(fd);
}

/* The tokens are 0, 7, 14, ...; the checksums in `meta` are made right, or nothing but their check would be tried. */
static void write_files(const char *bin, const char *path, uint8_t *meta, size_t size)
{
    struct {
        unsigned char header[ST_TOKEN_HEADER_BYTES];
        uint16_t tokens[TOKENS];
    } file;
    struct st_digest *digest;
    char hex[33];

    st_token_header_write(file.header, &(struct st_token_header){.token_bytes = 2, .vocab = VOCAB, .count = TOKENS});
    for (uint16_t i = 0; i < TOKENS; i++)
        file.tokens[i] = (uint16_t)(7 * i);
    write_whole(bin, &file, sizeof(file));
    if (size >= 128) {
        check(st_digest_create(&digest) == STRATA_OK);
        st_digest_update(digest, file.tokens, sizeof(file.tokens));
        st_digest_hex(digest, hex);
        memcpy(meta + 64, hex, 32);
        st_digest_destroy(digest);
        check(st_digest_create(&digest) == STRATA_OK);
        st_digest_update(digest, meta, size - 32);
        st_digest_hex(digest, hex);
        memcpy(meta + size - 32, hex, 32);
        st_digest_destroy(digest);
    }
    write_whole(path, meta, size);
}

static void check_windows(const struct st_token_set *set)
{
    int32_t tokens[SEQ], targets[SEQ], positions[SEQ];

    check(st_token_set_windows(set) > 0);
    for (uint64_t i = 0; i < st_token_set_windows(set); i++) {
        check(st_token_set_window(set, i, 1, i % 2 == 0, tokens, targets, positions) == STRATA_OK);
        for (uint32_t j = 0; j < SEQ; j++) {
            const bool padding = targets[j] == STRATA_TARGET_PADDING;

            check(tokens[j] >= 0 && tokens[j] < VOCAB && (padding || targets[j] >= -1) && targets[j] < VOCAB);
            check(padding || j == 0 || targets[j - 1] != STRATA_TARGET_PADDING); /* it ends a window */
            check(positions[j] == 0 || (j > 0 && positions[j] == positions[j - 1] + 1));
            check(padding || targets[j] == -1 || targets[j] == tokens[j] + 7);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[] = "/tmp/strata-fuzz-XXXXXX", bin[64], path[64];
    const char *const paths[] = {bin};
    uint8_t *meta = malloc(size + 1);
    struct st_token_set *set;
    strata_status st;

    check(mkdtemp(dir) != NULL && meta != NULL);
    snprintf(bin, sizeof(bin), "%s/a.bin", dir);
    snprintf(path, sizeof(path), "%s/a.bin.meta", dir);
    memcpy(meta, data, size);
    write_files(bin, path, meta, size);
    st = st_token_set_open(&set, paths, 1, VOCAB, SEQ);
    check(st == STRATA_OK || st == STRATA_E_INPUT);
    if (st == STRATA_OK) {
        check_windows(set);
        st_token_set_close(set);
    }
    check(unlink(bin) == 0 && unlink(path) == 0 && rmdir(dir) == 0);
    free(meta);
    return 0;
}
