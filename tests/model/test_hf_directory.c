/* tests/model/test_hf_directory.c - Hugging Face directories of ours: written and read back, digests, and every single failing
 * call leaving nothing behind. */
#include "core/base/checksum.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "hf_rig.h"
#include "model/hf/safetensors_internal.h"
#include "tests/common/fault_walk.h"
#include "tests/common/file_order.h"
#include "tests/common/whole_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_round_trip(const struct st_model_config *config, strata_dtype dtype)
{
    struct st_model *m = tiny_model_of(config, dtype);
    struct st_model_config back;
    const char *dir;

    scratch_open();
    dir = scratch_path("a/b/tiny");
    assert_ok(write_model(m, dir));
    assert_int_equal(scratch_entries(dir, NULL), 3);
    assert_ok(st_model_config_read(&back, dir));
    assert_memory_equal(&back.blocks, &config->blocks, sizeof(back) - offsetof(struct st_model_config, blocks));
    check_read(m, dir);
    assert_ok(write_model(m, dir)); /* over itself */
    assert_int_equal(scratch_entries(dir, NULL), 3);
    check_read(m, dir);
    scratch_close();
    st_model_destroy(m);
}

TEST(test_written_weights_are_read_back)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
    const struct st_model_config gpt2 = tiny_config();
    struct st_model_config llama = tiny_llama_config(), qwen2 = llama;
    const uint32_t descriptors = scratch_entries("/proc/self/fd", NULL);

    llama.untied = true;
    llama.biases = ST_BIAS_ATTENTION;
    qwen2.family = ST_FAMILY_QWEN2;
    qwen2.biases = ST_BIAS_QKV;
    for (size_t i = 0; i < 3; i++) {
        check_round_trip(&gpt2, dtypes[i]);
        check_round_trip(&llama, dtypes[i]);
        check_round_trip(&qwen2, dtypes[i]);
    }
    assert_int_equal(scratch_entries("/proc/self/fd", NULL), descriptors);
}

static void read_header(struct st_safetensors *out, const char *dir)
{
    char path[512];
    uint64_t bytes;
    char *file;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    file = read_file(path, &bytes);
    assert_ok(st_safetensors_read_memory(out, file, bytes, path));
    free(file);
}

/* Files have the tensors, by name and shape, that those had from which the model was read; a checkpoint says which they are. */
static void check_experts(const char *dir)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16, .slice_elems = 1};
    struct st_safetensors was, is;
    struct st_model_config config, back;
    struct st_model *m;

    scratch_open();
    assert_ok(st_model_config_read(&config, dir));
    assert_ok(st_model_create(&m, &config, &batch));
    assert_ok(write_model_from(m, scratch_path("out"), dir));
    check_read(m, scratch_path("out"));
    read_header(&was, dir);
    read_header(&is, scratch_path("out"));
    assert_int_equal(was.count, is.count);
    for (uint32_t i = 0; i < was.count; i++) {
        uint32_t k = 0;

        while (k < is.count && strcmp(was.tensors[i].name, is.tensors[k].name) != 0)
            k++;
        assert_true(k < is.count && was.tensors[i].rank == is.tensors[k].rank);
        assert_memory_equal(was.tensors[i].shape, is.tensors[k].shape, was.tensors[i].rank * sizeof(uint64_t));
    }
    st_safetensors_fini(&was);
    st_safetensors_fini(&is);
    assert_int_equal(mkdir(scratch_path("small"), 0777), 0);
    assert_ok(st_hf_write_small(m, scratch_path("small"), dir, NULL));
    assert_ok(st_model_config_read(&back, scratch_path("small")));
    assert_int_equal(back.stacked, config.stacked);
    st_model_destroy(m);
    scratch_close();
}

TEST(test_experts_are_written_as_they_were_read)
{
    check_experts("tests/golden/experts/mixtral");
    check_experts("tests/golden/experts/qwen2_moe");
    check_experts("tests/golden/experts/olmoe");
    check_experts("tests/golden/experts/gpt_oss");
}

/* What is frozen lies elsewhere in its page, and in the same place of the files. */
TEST(test_freezing_changes_no_file)
{
    static const char freeze[][128] = {"*.k_proj.weight", "*.input_layernorm.weight", "model.layers.1.mlp.*"};
    const struct st_model_batch batch = {
        .micro_batch = 2, .seq = 8, .grad_accum = 1, .dtype = STRATA_BF16, .freeze = freeze, .freeze_count = 3};
    const struct st_model_config config = tiny_llama_config();
    struct st_model *plain = tiny_model_of(&config, STRATA_BF16), *frozen;
    char *texts[2];
    size_t bytes[2];

    assert_ok(st_model_create(&frozen, &config, &batch));
    scratch_open();
    assert_ok(write_model(plain, scratch_path("plain")));
    assert_ok(write_model(frozen, scratch_path("frozen")));
    check_read(frozen, scratch_path("plain"));
    texts[0] = read_file(scratch_path("plain/model.safetensors"), &bytes[0]);
    texts[1] = read_file(scratch_path("frozen/model.safetensors"), &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(texts[0], texts[1], bytes[0]);
    free(texts[0]);
    free(texts[1]);
    scratch_close();
    st_model_destroy(plain);
    st_model_destroy(frozen);
}

/* XXH3-128 over the pages' groups without padding. */
static void plane_digest(const struct st_model *m, char hex[33])
{
    const uint64_t elem_bytes = strata_dtype_bytes(m->batch.dtype);
    struct st_digest *d;

    assert_ok(st_digest_create(&d));
    for (uint32_t i = 0; i < m->workload.page_count; i++) {
        const struct st_page *p = &m->workload.pages[i];
        unsigned char *weights = page_weights(m, i);

        for (uint32_t g = 0; g < p->group_count; g++)
            st_digest_update(d, weights + p->groups[g].offset * elem_bytes, p->groups[g].elems * elem_bytes);
        free(weights);
    }
    st_digest_hex(d, hex);
    st_digest_destroy(d);
}

TEST(test_digest_is_the_weight_planes)
{
    char want[33], got[33], other[33];
    struct st_model *m = tiny_model(STRATA_BF16), *wide = tiny_model(STRATA_F32);

    scratch_open();
    assert_ok(write_model(m, scratch_path("bf16")));
    assert_ok(write_model(wide, scratch_path("f32")));
    plane_digest(m, want);
    assert_ok(st_hf_digest(scratch_path("bf16"), got));
    assert_string_equal(got, want);
    plane_digest(wide, want);
    assert_ok(st_hf_digest(scratch_path("f32"), other));
    assert_string_equal(other, want);
    assert_string_not_equal(got, other);
    assert_refused(st_hf_digest(scratch_path("none"), got), STRATA_E_INPUT, "config.json");
    scratch_close();
    st_model_destroy(m);
    st_model_destroy(wide);
}

TEST(test_weights_that_change_are_noticed)
{
    const struct timespec long_ago[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    const struct st_model_config config = tiny_config();
    struct st_model *m = tiny_model_of(&config, STRATA_F32);
    struct st_hf_reader *r;
    const char *path;
    size_t bytes;
    char *file;

    scratch_open();
    assert_ok(write_model(m, scratch_dir));
    path = scratch_path("model.safetensors");
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    assert_ok(st_hf_reader_open(&r, m, scratch_dir));
    assert_ok(st_hf_reader_check_unchanged(r));
    file = read_file(path, &bytes);
    file[bytes - 1] ^= 1;
    write_file(path, file, bytes);
    assert_refused(st_hf_reader_check_unchanged(r), STRATA_E_INPUT, "model.safetensors changed while it was read");
    st_hf_reader_close(r);
    free(file);
    scratch_close();
    st_model_destroy(m);
}

TEST(test_abort_leaves_nothing)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    struct st_hf_writer *w;

    scratch_open();
    assert_ok(st_hf_writer_open(&w, m, scratch_path("new/deep"), NULL, NULL, true));
    st_hf_writer_abort(w);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    assert_ok(st_hf_writer_open(&w, m, scratch_dir, NULL, NULL, true)); /* a directory that was there stays */
    st_hf_writer_abort(w);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    write_file(scratch_path("mine.txt"), "x", 1);
    assert_ok(st_hf_writer_open(&w, m, scratch_dir, NULL, NULL, true));
    assert_refused(st_hf_writer_commit(w), STRATA_E_INTERNAL, "of 3144 values"); /* nothing was put */
    assert_int_equal(scratch_entries(scratch_dir, NULL), 1);
    st_hf_writer_abort(NULL);
    scratch_close();
    st_model_destroy(m);
}

/* A disk that is full shows before the first file of a model that is there is replaced. */
TEST(test_a_full_disk_replaces_nothing)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    char *text;
    size_t bytes;

    scratch_open();
    assert_ok(write_model(m, scratch_path("out")));
    write_file(scratch_path("out/config.json"), "mine", 4);
    st_fault_arm(&(struct st_fault_spec){.site = "file.sync", .result = -ENOSPC});
    assert_refused(write_model(m, scratch_path("out")), STRATA_E_NOSPC, "model.safetensors"); /* which is synced first */
    assert_int_equal(st_fault_disarm(), 1);
    text = read_file(scratch_path("out/config.json"), &bytes);
    assert_int_equal(bytes, 4);
    free(text);
    assert_int_equal(scratch_entries(scratch_path("out"), NULL), 3);
    scratch_close();
    st_model_destroy(m);
}

/* The one entry of a directory. */
static const char *only_entry(const char *dir)
{
    static char name[NAME_MAX + 1];
    DIR *entries = opendir(dir);

    assert_non_null(entries);
    for (const struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries))
        if (entry->d_name[0] != '.')
            snprintf(name, sizeof(name), "%s", entry->d_name);
    closedir(entries);
    assert_int_equal(scratch_entries(dir, name), 0);
    return name;
}

/* Of config, generation config or weights; for reasons that are not those of a disk, too. */
TEST(test_a_name_that_cannot_be_had_loses_no_weights)
{
    static const int errors[] = {EACCES, ENOMEM, EIO};
    struct st_model *m = tiny_model(STRATA_BF16);
    char kept[ST_PATH_MAX];

    for (uint32_t nth = 0; nth < 3; nth++) {
        scratch_open();
        assert_ok(write_model(m, scratch_path("other")));
        st_fault_arm(&(struct st_fault_spec){.site = "file.rename", .after = nth, .count = 1, .result = -errors[nth]});
        assert_refused(write_new_model(m, scratch_path("out")), STRATA_E_IO, "the trained weights are kept as");
        assert_int_equal(st_fault_disarm(), 1);
        assert_ok(st_path_join(kept, scratch_path("out"), only_entry(scratch_path("out"))));
        assert_non_null(strstr(kept, "out/model.safetensors.strata-"));
        assert_non_null(strstr(strata_last_error(), kept));
        assert_int_equal(rename(kept, scratch_path("out/model.safetensors")), 0); /* as the sentence says */
        assert_int_equal(rename(scratch_path("other/config.json"), scratch_path("out/config.json")), 0);
        check_read(m, scratch_path("out"));
        scratch_close();
    }
    st_model_destroy(m);
}

/* Every file has its name; only a power cut could take it. */
TEST(test_a_directory_that_cannot_be_synced_holds_the_model)
{
    struct st_model *m = tiny_model(STRATA_BF16);

    scratch_open();
    st_fault_arm(&(struct st_fault_spec){.site = "file.sync_directory", .result = -ENOMEM});
    assert_refused(write_model(m, scratch_path("out")), STRATA_E_IO,
                   "the model is written, but a power cut may take it: syncing");
    assert_int_equal(st_fault_disarm(), 3);
    assert_int_equal(scratch_entries(scratch_path("out"), NULL), 3);
    check_read(m, scratch_path("out"));
    scratch_close();
    st_model_destroy(m);
}

/* Weights and configs are one model: all of it is on the disk before the first name, and the weights take theirs last. */
TEST(test_weights_take_their_name_last)
{
    static const char want[] = "sync model.safetensors, sync config.json, sync generation_config.json, "
                               "sync config.json, name config.json, sync ., "
                               "sync generation_config.json, name generation_config.json, sync ., "
                               "name model.safetensors, sync model.safetensors, sync .";
    struct st_model *m = tiny_model(STRATA_BF16);

    scratch_open();
    for (int i = 0; i < 2; i++) { /* and over themselves */
        file_order_begin();
        assert_ok(write_model(m, scratch_path("out")));
        assert_string_equal(file_order_text(), want);
    }
    scratch_close();
    st_model_destroy(m);
}

/* The digest is of every byte of the weights as they are stored, also of tensors that are read in parts. */
TEST(test_a_digest_is_of_all_bytes)
{
    struct st_model_config config = tiny_llama_config();
    struct st_digest *d;
    char want[33], got[33], *file;
    struct st_safetensors header;
    struct st_model *m;
    size_t bytes;

    config.vocab = 20000;
    m = tiny_model_of(&config, STRATA_F32);
    scratch_open();
    assert_ok(write_new_model(m, scratch_path("out")));
    file = read_file(scratch_path("out/model.safetensors"), &bytes);
    assert_ok(st_safetensors_read_memory(&header, file, bytes, "out"));
    assert_true(header.tensors[0].end - header.tensors[0].begin > 1 << 20);
    assert_ok(st_digest_create(&d));
    st_digest_update(d, file + header.tensors[0].begin, bytes - header.tensors[0].begin);
    st_digest_hex(d, want);
    st_digest_destroy(d);
    assert_ok(st_hf_digest(scratch_path("out"), got));
    assert_string_equal(got, want);
    st_safetensors_fini(&header);
    free(file);
    scratch_close();
    st_model_destroy(m);
}

TEST(test_misuse_is_refused)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    const uint16_t values[512] = {0};
    struct st_hf_writer *w = NULL;

    scratch_open();
    assert_refused(st_hf_writer_open(&w, m, "", NULL, NULL, true), STRATA_E_INVAL, "empty");
    write_file(scratch_path("file"), "x", 1);
    assert_int_not_equal(st_hf_writer_open(&w, m, scratch_path("file"), NULL, NULL, true), STRATA_OK);
    assert_int_not_equal(st_hf_writer_open(&w, m, scratch_path("file/below"), NULL, NULL, true), STRATA_OK);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 1);
    assert_ok(st_hf_writer_open(&w, m, scratch_dir, NULL, NULL, true));
    assert_ok(st_hf_writer_put(w, 1, 0, 256, values));
    assert_refused(st_hf_writer_put(w, 1, 128, 128, values), STRATA_E_INTERNAL, "out of order");
    assert_refused(st_hf_writer_put(w, 1, 256, 512, values), STRATA_E_INTERNAL, "out of order");
    assert_refused(st_hf_writer_put(w, 99, 0, 1, values), STRATA_E_INTERNAL, "out of order");
    st_hf_writer_abort(w);
    scratch_close();
    st_model_destroy(m);
}

/* The parents of "rs/new/out" are "rs" and "rs/new", whatever else has a name that begins so. */
TEST(test_only_parents_stand_in_the_way_of_a_directory)
{
    char before[ST_PATH_MAX];

    scratch_open();
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(scratch_dir), 0);
    write_file("r", "x", 1);
    assert_int_equal(mkdir("rs", 0755), 0);
    write_file("rs/n", "x", 1);
    assert_ok(st_hf_output_check("rs/new/out", false));
    assert_ok(st_hf_output_check("rs/new", false));
    assert_ok(st_hf_output_check("rx/new", false));
    assert_int_not_equal(st_hf_output_check("r/new/out", false), STRATA_OK);
    assert_int_not_equal(st_hf_output_check("rs/n/out", false), STRATA_OK);
    if (geteuid() != 0) { /* whom nothing is forbidden */
        assert_int_equal(chmod("rs", 0555), 0);
        assert_refused(st_hf_output_check("rs/new/out", false), STRATA_E_INPUT, "cannot be created in rs");
        assert_int_equal(chmod("rs", 0755), 0);
    }
    assert_int_equal(chdir(before), 0);
    scratch_close();
}

/* A model of several files is overwritten by nothing, and least of all because the disk does not say what is there. */
TEST(test_a_directory_that_cannot_be_listed_is_an_error)
{
    static const char *const sites[] = {"hf.opendir", "file.readdir"};
    struct st_model *m = tiny_model(STRATA_BF16);
    struct st_hf_writer *w = NULL;

    scratch_open();
    write_file(scratch_path("model-00001-of-00002.safetensors"), "x", 1);
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -EIO});
        assert_refused(st_hf_writer_open(&w, m, scratch_dir, NULL, NULL, false), STRATA_E_IO, "Input/output error");
        assert_int_equal(st_fault_disarm(), 1);
    }
    assert_refused(st_hf_writer_open(&w, m, scratch_dir, NULL, NULL, false), STRATA_E_INPUT, "exists already");
    scratch_close();
    st_model_destroy(m);
}

TEST(test_every_single_failure_is_clean)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    struct fault_walk walk = {.result = -EIO};
    char hex[33];

    while (fault_walk_next(&walk)) {
        const char *dir;
        strata_status st;

        scratch_open();
        dir = scratch_path("out");
        st = write_model(m, dir);
        if (st == STRATA_OK)
            st = st_hf_digest(dir, hex);
        fault_walk_end(&walk, st);
        assert_int_equal(scratch_entries_with(dir, ".tmp"), 0);
        if (st == STRATA_OK)
            check_read(m, dir);
        scratch_close();
    }
    assert_true(walk.failed > 20);
    st_model_destroy(m);
}

TEST(test_short_transfers_continue)
{
    struct st_model *m = tiny_model(STRATA_BF16);
    const struct st_fault_spec shorter = {.site = "file.read", .count = 1, .result = -EINTR};

    scratch_open();
    assert_ok(write_model(m, scratch_dir));
    st_fault_arm(&shorter);
    check_read(m, scratch_dir);
    assert_int_equal(st_fault_disarm(), 1);
    scratch_close();
    st_model_destroy(m);
}
