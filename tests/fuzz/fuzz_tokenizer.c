/* fuzz_tokenizer.c - any bytes as a tokenizer file, and then as text: no crash; ids have texts, places lie in the text, parts of
 * any size give the same ids, and the text streamed from them is the text decoded at once.
 *
 * The first byte says which file it is (0: tokenizer.json, 1: tokenizer.model, 2 and more: text for a tokenizer of the golden
 * files' kind), the rest is its contents. */
#include "text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char sample[] =
    "Hello,  world's caf\xc3\xa9 e\xcc\x81 12345 \xe4\xb8\xad\xe6\x96\x87 <s><|end|> \xff\n\n\t x \xf0\x9f\x98\x80 ab ab";

/* Normalizer, pre-tokenizer, added tokens, decoder: one of each kind, over bytes. */
static const char *const tokenizers[] = {
    "{\"added_tokens\":[{\"id\":259,\"content\":\"<s>\",\"special\":true,\"normalized\":false,\"rstrip\":true},"
    "{\"id\":260,\"content\":\"b c\",\"normalized\":true},{\"id\":261,\"content\":\"w\",\"single_word\":true,\"lstrip\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Prepend\",\"prepend\":\"_\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":2}]},"
    "\"model\":{\"byte_fallback\":true,\"fuse_unk\":true,\"vocab\":{\"_\":256,\"a\":257,\"_a\":258",
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+|\\\\p{N}{1,"
    "2}\"},"
    "\"behavior\":\"MergedWithNext\"},{\"type\":\"Digits\"},{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
    "\"first\"}]},"
    "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\"},"
    "\"model\":{\"byte_fallback\":true,\"ignore_merges\":true,\"vocab\":{\"_\":256,\"a\":257,\"_a\":258",
};

static void check(bool holds)
{
    if (!holds)
        abort();
}

static struct st_tokenizer *open_bytes(const void *data, size_t size, const char *end)
{
    const int fd = memfd_create("tokenizer", MFD_CLOEXEC);
    struct st_tokenizer *t = NULL;
    char path[64], name[96];
    strata_status st;

    check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    snprintf(name, sizeof(name), "/tmp/fuzz-tokenizer-%d%s", (int)getpid(), end);
    (void)unlink(name);
    check(symlink(path, name) == 0);
    st = st_tokenizer_open(&t, name);
    check(st == STRATA_OK || st == STRATA_E_INPUT);
    (void)unlink(name);
    close(fd);
    return st == STRATA_OK ? t : NULL;
}

static void check_parts(struct st_encoder *e, const char *text, size_t bytes, const struct st_encoding *whole)
{
    struct st_encoding out = {0};
    strata_status st = STRATA_OK;

    st_encode_begin(e, NULL);
    for (size_t at = 0, part = 1; at < bytes && st == STRATA_OK; at += part, part = part % 7 + 1)
        st = st_encode_feed(e, text + at, part < bytes - at ? part : bytes - at, &out);
    if (st == STRATA_OK)
        st = st_encode_finish(e, &out);
    check(st == STRATA_OK && out.count == whole->count);
    check(out.count == 0 || memcmp(out.ids, whole->ids, out.count * sizeof(out.ids[0])) == 0);
    check(out.count == 0 || memcmp(out.begins, whole->begins, out.count * sizeof(out.begins[0])) == 0);
    st_encoding_free(&out);
}

static void check_text(const struct st_tokenizer *t, const char *text, size_t bytes)
{
    struct st_encoding out = {0};
    struct st_decoded whole = {0}, parts = {0};
    struct st_decoder *d;
    struct st_encoder *e;
    size_t length;

    check(st_encoder_create(&e, t) == STRATA_OK && st_decoder_create(&d, t, false) == STRATA_OK);
    if (st_encode(e, text, bytes, NULL, &out) == STRATA_OK) { /* else a pattern gave up */
        for (size_t i = 0; i < out.count; i++) {
            check(out.ids[i] < st_tokenizer_vocab(t) && st_tokenizer_text(t, out.ids[i], &length) != NULL);
            check(out.begins[i] <= out.ends[i] && out.ends[i] <= bytes);
            check(st_decoder_push(d, out.ids[i], &parts) == STRATA_OK);
        }
        check(st_decoder_finish(d, &parts) == STRATA_OK);
        check(st_decode(t, out.ids, out.count, false, &whole) == STRATA_OK);
        check(parts.count == whole.count && (whole.count == 0 || memcmp(parts.bytes, whole.bytes, whole.count) == 0));
        check_parts(e, text, bytes, &out);
    }
    st_encoding_free(&out);
    st_decoded_free(&whole);
    st_decoded_free(&parts);
    st_decoder_destroy(d);
    st_encoder_destroy(e);
}

static struct st_tokenizer *open_sample(size_t which)
{
    char json[16384];
    size_t length = (size_t)snprintf(json, sizeof(json), "%s", tokenizers[which]);
    struct st_tokenizer *t;

    for (unsigned byte = 0; byte < 256; byte++)
        length += (size_t)snprintf(json + length, sizeof(json) - length, ",\"<0x%02X>\":%u", byte, byte);
    length += (size_t)snprintf(json + length, sizeof(json) - length, "},\"merges\":[\"_ a\"]}}");
    t = open_bytes(json, length, ".json");
    check(t != NULL);
    return t;
}

/* Opened once: texts are what is tried here. */
static void check_sample_text(size_t which, const char *text, size_t bytes)
{
    static struct st_tokenizer *samples[2];

    if (samples[which] == NULL)
        samples[which] = open_sample(which);
    check_text(samples[which], text, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_tokenizer *t;

    if (size == 0)
        return 0;
    if (data[0] > 1) {
        check_sample_text(data[0] % 2, (const char *)data + 1, size - 1);
        return 0;
    }
    t = open_bytes(data + 1, size - 1, data[0] == 0 ? ".json" : ".model");
    if (t != NULL)
        check_text(t, sample, sizeof(sample) - 1);
    st_tokenizer_close(t);
    return 0;
}
