/* test_documents.c - token files with documents: written, read back in each layout, packed, masked; every refusal of what lies
 * beside a token file. */
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "tests/common/fault_walk.h"
#include "tests/common/file_order.h"
#include "tests/common/kept_log.h"
#include "tests/common/whole_file.h"
#include "tests/text/text_fixture.h"
#include "text/data/token_pack.h"
#include "text/data/token_writer.h"
#include "text/data/tokens.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VOCAB = 1000, DOCUMENTS = 7, SOURCE_BYTES = 1000 };

/* Document d has lengths[d] tokens, 100 * d + i; of each the tokens with i % 3 != 0 are trained. */
static const uint32_t lengths[DOCUMENTS] = {5, 1, 8, 3, 12, 2, 4};

static bool trained(uint32_t i)
{
    return i % 3 != 0;
}

static strata_status write_documents(const char *path, enum st_token_layout layout, bool masked, uint32_t vocab)
{
    const struct st_token_writer_opts opts = {.vocab = vocab, .tokenizer = 77, .layout = layout, .masked = masked};
    struct st_token_writer *w;
    strata_status st = st_token_writer_create(&w, path, &opts);

    if (st != STRATA_OK)
        return st;
    for (uint32_t d = 0; d < DOCUMENTS && st == STRATA_OK; d++) {
        uint32_t ids[16];
        uint8_t mask[16];

        for (uint32_t i = 0; i < lengths[d]; i++) {
            ids[i] = 100 * d + i;
            mask[i] = trained(i);
        }
        st = st_token_writer_put(w, ids, masked ? mask : NULL, lengths[d]);
    }
    if (st != STRATA_OK) {
        st_token_writer_abort(w);
        return st;
    }
    return st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){SOURCE_BYTES});
}

/* Opens a file of this layout with sequences of `seq` tokens. */
static struct st_token_set *open_set(enum st_token_layout layout, bool masked, uint32_t vocab, uint32_t seq)
{
    const char *path;
    struct st_token_set *set;

    scratch_open();
    path = scratch_path("a.bin");
    assert_ok(write_documents(path, layout, masked, vocab));
    assert_ok(st_token_set_open(&set, &path, 1, vocab, seq));
    return set;
}

/* A notice counts what is longer than a sequence, not what just fills one. */
TEST(what_is_cut_is_said)
{
    static const struct {
        uint32_t seq;
        const char *said; /* NULL: nothing */
    } rows[] = {
        {8, "1 of 7 documents are longer than a sequence of 8 tokens"}, {11, "1 of 7"}, {7, "2 of 7"}, {4, "3 of 7"}, {12, NULL}};

    for (uint32_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        const enum st_token_layout layout = i % 2 == 0 ? ST_LAYOUT_ROWS : ST_LAYOUT_PACKED;
        struct st_token_set *set;

        kept_log_begin(ST_LOG_NOTICE);
        set = open_set(layout, false, VOCAB, rows[i / 2].seq);
        kept_log_end();
        assert_int_equal(kept_log.count, rows[i / 2].said != NULL ? 2 : 1); /* the other: one has nothing to train */
        if (rows[i / 2].said != NULL && strstr(kept_log.last, rows[i / 2].said) == NULL)
            fail_msg("\"%s\" does not say: %s", kept_log.last, rows[i / 2].said);
        st_token_set_close(set);
        scratch_close();
    }
}

/* One document in a window, from `at` on, cut at seq. */
static uint32_t check_document(const int32_t *tokens, const int32_t *targets, const int32_t *positions, uint32_t at, uint32_t seq,
                               uint32_t d, bool masked)
{
    const uint32_t n = lengths[d] < seq - at ? lengths[d] : seq - at;

    for (uint32_t i = 0; i < n; i++) {
        const bool counts = i + 1 < n && (!masked || trained(i + 1));

        assert_int_equal(tokens[at + i], 100 * d + i);
        assert_int_equal(targets[at + i], counts ? (int32_t)(100 * d + i + 1) : -1);
        assert_int_equal(positions[at + i], i);
    }
    return at + n;
}

static void check_padding(const int32_t *tokens, const int32_t *targets, const int32_t *positions, uint32_t at, uint32_t seq)
{
    for (uint32_t i = at; i < seq; i++) {
        assert_int_equal(tokens[i], 0);
        assert_int_equal(targets[i], STRATA_TARGET_PADDING);
        assert_int_equal(positions[i], i - at);
    }
}

TEST(rows_hold_one_document)
{
    for (uint32_t wide = 0; wide < 2; wide++) {
        struct st_token_set *set = open_set(ST_LAYOUT_ROWS, wide == 0, wide != 0 ? 100000 : VOCAB, 8);
        int32_t tokens[8], targets[8], positions[8];

        assert_int_equal(st_token_set_windows(set), DOCUMENTS - 1); /* one token has no target */
        assert_false(st_token_set_documents(set));
        for (uint32_t d = 0; d < DOCUMENTS; d += d == 0 ? 2 : 1) {
            assert_ok(st_token_set_window(set, d - (d > 1), 0, false, tokens, targets, positions));
            check_padding(tokens, targets, positions, check_document(tokens, targets, positions, 0, 8, d, wide == 0), 8);
        }
        st_token_set_close(set);
        scratch_close();
    }
}

/* Longest first into the fullest window that has room: 12 (cut to 8) | 8 | 5 3 | 4 2; what has one token has no target. */
TEST(packed_windows_hold_whole_documents)
{
    static const uint32_t wanted[4][4] = {{2, DOCUMENTS}, {4, DOCUMENTS}, {0, 3, DOCUMENTS}, {6, 5, DOCUMENTS}};
    struct st_token_set *set = open_set(ST_LAYOUT_PACKED, true, VOCAB, 8);
    int32_t tokens[8], targets[8], positions[8];

    assert_int_equal(st_token_set_windows(set), 4);
    assert_true(st_token_set_documents(set));
    assert_true(st_token_set_bytes_per_token(set) == 0);
    for (uint32_t w = 0; w < 4; w++) {
        uint32_t at = 0;

        assert_ok(st_token_set_window(set, w, 0, false, tokens, targets, positions));
        for (uint32_t i = 0; wanted[w][i] != DOCUMENTS; i++)
            at = check_document(tokens, targets, positions, at, 8, wanted[w][i], true);
        check_padding(tokens, targets, positions, at, 8);
    }
    st_token_set_close(set);
    scratch_close();
}

/* Bytes of text a token are known where every token is a target, whatever is between. */
TEST(bytes_per_token_are_of_whole_texts)
{
    static const enum st_token_layout layouts[] = {ST_LAYOUT_CONCATENATED, ST_LAYOUT_ROWS, ST_LAYOUT_PACKED};
    uint32_t tokens = 0;

    for (uint32_t d = 0; d < DOCUMENTS; d++)
        tokens += lengths[d];
    for (uint32_t i = 0; i < 6; i++) {
        struct st_token_set *set = open_set(layouts[i % 3], i >= 3, VOCAB, 8);

        assert_true(st_token_set_bytes_per_token(set) == (i == 0 ? (double)SOURCE_BYTES / tokens : 0));
        st_token_set_close(set);
        scratch_close();
    }
}

/* 35 tokens in windows of 8 and their targets; a target that is not trained is -1. */
TEST(concatenated_windows_are_masked)
{
    struct st_token_set *set = open_set(ST_LAYOUT_CONCATENATED, true, VOCAB, 8);
    int32_t tokens[8], targets[8], positions[8];
    uint32_t d = 0, i = 0;

    assert_int_equal(st_token_set_windows(set), 4);
    for (uint32_t at = 0; at < 32; at++) {
        const int32_t token = (int32_t)(100 * d + i);

        if (at % 8 == 0)
            assert_ok(st_token_set_window(set, at / 8, 0, false, tokens, targets, positions));
        i++;
        if (i == lengths[d])
            d++, i = 0;
        assert_int_equal(tokens[at % 8], token);
        assert_int_equal(targets[at % 8], trained(i) ? (int32_t)(100 * d + i) : -1);
        assert_int_equal(positions[at % 8], at % 8);
    }
    st_token_set_close(set);
    scratch_close();
}

/* A file of so many documents, one as long as another, with these marks of `tokens` tokens; its borders and marks, opened. */
static struct st_token_meta *marked_documents(const uint8_t *mask, uint32_t tokens, uint32_t documents)
{
    const struct st_token_writer_opts opts = {.vocab = VOCAB, .layout = ST_LAYOUT_CONCATENATED, .masked = true};
    const uint32_t length = tokens / documents;
    uint32_t *ids = calloc(length, sizeof(*ids));
    struct st_token_writer *w;
    struct st_token_meta *m;

    assert_non_null(ids);
    scratch_open();
    assert_ok(st_token_writer_create(&w, scratch_path("a.bin"), &opts));
    for (uint32_t d = 0; d < documents; d++)
        assert_ok(st_token_writer_put(w, ids, mask + d * length, length));
    assert_ok(st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){0}));
    assert_ok(st_token_meta_open(&m, scratch_path("a.bin"), tokens));
    free(ids);
    return m;
}

static void draw_marks(uint8_t *mask, uint32_t tokens)
{
    for (uint32_t i = 0; i < tokens; i++)
        mask[i] = (uint8_t)(i * 2654435761u >> 31);
}

/* Targets of a long document from anywhere, more than are read at once: each as the mask has it, and none beside them is touched.
 */
TEST(masks_are_read_in_parts)
{
    enum { LENGTH = 13000, COUNT = 8200 };
    static uint8_t mask[LENGTH];
    static int32_t targets[COUNT + 2];
    struct st_token_meta *m;

    draw_marks(mask, LENGTH);
    m = marked_documents(mask, LENGTH, 1);
    for (uint32_t first = 0; first < 18; first++) {
        memset(targets, 0, sizeof(targets));
        assert_ok(st_token_meta_mask(m, first, COUNT - first % 3, targets + 1));
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(targets[1 + i], i < COUNT - first % 3 && mask[first + i] == 0 ? -1 : 0);
        assert_true(targets[0] == 0 && targets[COUNT + 1] == 0);
    }
    st_token_meta_close(m);
    scratch_close();
}

/* A text beside conversations: no marks are all of them. */
TEST(what_has_no_marks_is_trained_whole)
{
    enum { PART = 11, PARTS = 4 };
    const struct st_token_writer_opts opts = {.vocab = VOCAB, .layout = ST_LAYOUT_CONCATENATED, .masked = true};
    const uint8_t marks[PART] = {0, 1, 1};
    const uint32_t ids[PART] = {0};
    int32_t targets[PART * PARTS] = {0};
    struct st_token_writer *w;
    struct st_token_meta *m;

    scratch_open();
    assert_ok(st_token_writer_create(&w, scratch_path("a.bin"), &opts));
    assert_ok(st_token_writer_put(w, ids, marks, PART));
    assert_ok(st_token_writer_put(w, ids, NULL, PART));
    assert_ok(st_token_writer_more(w, ids, NULL, PART));
    assert_ok(st_token_writer_more(w, ids, marks, PART));
    assert_ok(st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){0}));
    assert_ok(st_token_meta_open(&m, scratch_path("a.bin"), PART * PARTS));
    assert_ok(st_token_meta_mask(m, 0, PART * PARTS, targets));
    for (uint32_t i = 0; i < PART * PARTS; i++) {
        const bool whole = i / PART == 1 || i / PART == 2;

        assert_int_equal(targets[i], whole || marks[i % PART] != 0 ? 0 : -1);
    }
    st_token_meta_close(m);
    scratch_close();
}

/* Of many documents, whose marks take more room each time. */
TEST(masks_of_many_documents_stay)
{
    enum { ALL = 90000 };
    static uint8_t mask[ALL];
    static int32_t targets[ALL];
    struct st_token_meta *m;

    draw_marks(mask, ALL);
    m = marked_documents(mask, ALL, 90);
    assert_ok(st_token_meta_mask(m, 0, ALL, targets));
    for (uint32_t i = 0; i < ALL; i++)
        assert_int_equal(targets[i], mask[i] == 0 ? -1 : 0);
    st_token_meta_close(m);
    scratch_close();
}

/* Seeded lengths: each document is in one sequence, none is over full, and few tokens are wasted. */
TEST(packing_is_whole_and_tight)
{
    enum { COUNT = 10000, SEQ = 512 };
    uint64_t *starts = calloc(COUNT + 1, sizeof(*starts)), sum = 0;
    uint32_t *documents = calloc(COUNT, sizeof(*documents)), count = 0;
    uint8_t *seen = calloc(COUNT, 1);
    uint64_t longer = 0;
    struct st_packing p;

    assert_true(starts != NULL && documents != NULL && seen != NULL);
    for (uint32_t i = 0; i < COUNT; i++)
        starts[i + 1] = starts[i] + 1 + st_rng_permute(i % 600, 600, 3, i / 600);
    for (uint32_t i = 0; i < COUNT; i++) /* every tenth is left out */
        if (i % 10 != 0) {
            documents[count++] = i;
            longer += starts[i + 1] - starts[i] > SEQ;
        }
    assert_ok(st_pack_documents(&p, starts, documents, count, SEQ));
    assert_int_equal(p.cut, longer);
    for (uint64_t s = 0; s < p.sequences; s++) {
        uint64_t tokens = 0;

        assert_true(p.firsts[s] < p.firsts[s + 1]);
        for (uint64_t i = p.firsts[s]; i < p.firsts[s + 1]; i++) {
            const uint64_t length = starts[p.order[i] + 1] - starts[p.order[i]];

            assert_int_equal(seen[p.order[i]]++, 0);
            assert_true(p.order[i] % 10 != 0);
            tokens += length < SEQ ? length : SEQ;
        }
        assert_true(tokens <= SEQ);
        sum += tokens;
    }
    assert_int_equal(p.firsts[p.sequences], count);
    assert_true(sum >= p.sequences * SEQ / 10 * 9);
    st_packing_free(&p);
    free(starts);
    free(documents);
    free(seen);
}

/* Documents of 8 tokens, of which number d trains token d alone; 600 more, the last of which trains its last token. */
TEST(documents_without_a_target_are_left_out)
{
    const struct st_token_writer_opts opts = {.vocab = VOCAB, .layout = ST_LAYOUT_PACKED, .masked = true};
    const char *path;
    struct st_token_writer *w;
    struct st_token_set *set;

    scratch_open();
    path = scratch_path("a.bin");
    assert_ok(st_token_writer_create(&w, path, &opts));
    for (uint32_t d = 0; d < 608; d++) {
        const uint32_t ids[8] = {d};
        uint8_t mask[8] = {0};

        if (d < 8 || d == 607)
            mask[d < 8 ? d : 7] = 1;
        assert_ok(st_token_writer_put(w, ids, mask, 8));
    }
    assert_ok(st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){0}));
    for (uint32_t seq = 2; seq <= 8; seq++) { /* of 0 nothing predicts the token that is trained */
        assert_ok(st_token_set_open(&set, &path, 1, VOCAB, seq));
        assert_int_equal(st_token_set_windows(set), seq - 1 + (seq == 8));
        for (uint64_t i = 0; i < st_token_set_windows(set); i++) {
            int32_t tokens[8], targets[8], positions[8];

            assert_ok(st_token_set_window(set, i, 0, false, tokens, targets, positions));
            assert_int_equal(tokens[0], i < 7 ? i + 1 : 607);
            for (uint32_t k = 0; k < seq; k++)
                assert_int_equal(targets[k], k == (i < 7 ? i : 6) ? 0 : -1);
        }
        st_token_set_close(set);
    }
    scratch_close();
}

/* --- refusals --- */

static void assert_open_fails(const char *path, const char *sentence)
{
    struct st_token_set *set;

    assert_refused(st_token_set_open(&set, &path, 1, VOCAB, 8), STRATA_E_INPUT, sentence);
}

/* Every byte of what lies beside a token file is checked. */
TEST(damage_is_found)
{
    const char *path, *meta;
    size_t bytes;
    char *good;

    scratch_open();
    path = scratch_path("a.bin");
    meta = scratch_path("a.bin.meta");
    assert_ok(write_documents(path, ST_LAYOUT_PACKED, true, VOCAB));
    good = read_file(meta, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        good[i] = (char)(good[i] ^ 0x10);
        write_file(meta, good, bytes);
        good[i] = (char)(good[i] ^ 0x10);
        assert_open_fails(path, "a.bin");
    }
    for (size_t cut = 0; cut < bytes; cut += 7) {
        write_file(meta, good, cut);
        assert_open_fails(path, "a.bin.meta");
    }
    free(good);
    scratch_close();
}

/* No documents would be no sequences, and there is a sequence at every position. */
TEST(no_documents_are_refused)
{
    unsigned char bin[ST_TOKEN_HEADER_BYTES], meta[96 + 32] = "STRATAMD\1\0\0\0\2"; /* version 1, rows */
    const char *path;

    scratch_open();
    path = scratch_path("a.bin");
    st_token_header_write(bin, &(struct st_token_header){.token_bytes = 2, .vocab = VOCAB});
    write_file(path, bin, sizeof(bin));
    write_file(scratch_path("a.bin.meta"), meta, sizeof(meta));
    assert_open_fails(path, "numbers in its header are impossible");
    scratch_close();
}

TEST(files_belong_together)
{
    const char *a, *b;
    size_t bytes;
    char *text;

    scratch_open();
    a = scratch_path("a.bin");
    b = scratch_path("b.bin");
    assert_ok(write_documents(a, ST_LAYOUT_PACKED, true, VOCAB));
    assert_ok(write_documents(b, ST_LAYOUT_ROWS, true, VOCAB));
    text = read_file(a, &bytes);
    text[1024 + 6] = (char)(text[1024 + 6] ^ 1); /* another token, of the same vocabulary */
    write_file(a, text, bytes);
    free(text);
    assert_open_fails(a, "a.bin.meta is not for the tokens in");
    scratch_close();
}

/* A run of such a file would learn nothing, and say that its loss is 0. */
TEST(nothing_to_train_is_refused)
{
    const struct st_token_writer_opts opts = {.vocab = VOCAB, .layout = ST_LAYOUT_ROWS, .masked = true};
    const uint32_t ids[9] = {0};
    const uint8_t mask[9] = {[0] = 1, [8] = 1};
    struct st_token_writer *w;

    scratch_open();
    assert_ok(st_token_writer_create(&w, scratch_path("a.bin"), &opts));
    assert_ok(st_token_writer_put(w, ids, mask, 9));
    assert_ok(st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){0}));
    assert_open_fails(scratch_path("a.bin"), "none of 1 documents has a token to train among its first 8: raise model.seq_len");
    scratch_close();
}

TEST(names_that_are_taken)
{
    const char *path, *meta;
    struct stat s;

    scratch_open();
    path = scratch_path("a.bin");
    meta = scratch_path("a.bin.meta");
    write_file(meta, "mine", 4);
    assert_refused(write_documents(path, ST_LAYOUT_ROWS, false, VOCAB), STRATA_E_INPUT, "a.bin.meta");
    assert_int_equal(stat(path, &s), -1);
    assert_int_equal(stat(meta, &s), 0);
    assert_int_equal(s.st_size, 4);
    scratch_close();
}

TEST(no_tokens_is_no_file)
{
    const struct st_token_writer_opts opts = {.vocab = VOCAB};
    struct st_token_writer *w;
    struct stat s;

    scratch_open();
    assert_ok(st_token_writer_create(&w, scratch_path("a.bin"), &opts));
    assert_ok(st_token_writer_put(w, NULL, NULL, 0));
    assert_refused(st_token_writer_finish((struct st_token_writer *[2]){w, NULL}, (const uint64_t[2]){0}), STRATA_E_INPUT,
                   "there is no text");
    assert_int_equal(stat(scratch_path("a.bin"), &s), -1);
    assert_int_equal(stat(scratch_path("a.bin.meta"), &s), -1);
    scratch_close();
}

/* Whatever fails, both files are there or neither, and a set reads what was written. */
TEST(one_failure_at_a_time)
{
    struct fault_walk walk = {.result = -EIO};

    scratch_open();
    while (fault_walk_next(&walk)) {
        const char *path = scratch_path("a.bin");
        int32_t tokens[8], targets[8], positions[8];
        struct st_token_set *set = NULL;
        struct stat s;
        strata_status st = write_documents(path, ST_LAYOUT_PACKED, true, VOCAB);

        if (st == STRATA_OK)
            st = st_token_set_open(&set, &path, 1, VOCAB, 8);
        if (st == STRATA_OK)
            st = st_token_set_window(set, 3, 0, false, tokens, targets, positions);
        if (st == STRATA_OK)
            (void)check_document(tokens, targets, positions, 0, 8, 6, true);
        st_token_set_close(set);
        fault_walk_end(&walk, st);
        assert_int_equal(stat(path, &s), stat(scratch_path("a.bin.meta"), &s));
        (void)unlink(path);
        (void)unlink(scratch_path("a.bin.meta"));
    }
    assert_true(walk.failed > 20);
    scratch_close();
}

/* What lay beside the file that was replaced would be taken for the new one's. */
TEST(the_meta_file_of_what_is_replaced_goes)
{
    enum { BYTES = 40000 };
    char *text = malloc(BYTES);
    const char *source;

    scratch_open();
    source = scratch_path("text");
    memset(text, 'a', BYTES);
    write_file(source, text, BYTES);
    scratch_put("x.bin.meta", "another's");
    assert_refused(st_tokens_from_text(NULL, &source, 1, scratch_path("x.bin"), 0.5, false, NULL), STRATA_E_INPUT,
                   "x.bin.meta: exists already");
    scratch_holds("x.bin.meta", "another's");
    scratch_put("x.heldout.bin.meta", "another's");
    assert_ok(st_tokens_from_text(NULL, &source, 1, scratch_path("x.bin"), 0.5, true, NULL));
    assert_int_equal(scratch_entries(scratch_dir, NULL), 3); /* the text and two token files */
    scratch_close();
    free(text);
}
