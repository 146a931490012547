/* tests/cli/workplace.c - makes the directory with the program itself, then damages copies. */
#include "tests/cli/workplace.h"
#include "tests/cli/program.h"
#include "tests/common/whole_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES   256
#define TEXT_BYTES   16700u /* a block, and what is held out: some windows of 128 tokens */
#define HEADER_BYTES 1024u
#define WINDOW_JSON                                                                                                              \
    "{\"model_type\":\"mistral\",\"num_hidden_layers\":1,\"hidden_size\":8,\"num_attention_heads\":1,\"num_key_value_heads\":1," \
    "\"intermediate_size\":8,\"vocab_size\":256,\"max_position_embeddings\":8192}"
#define MODEL_JSON                                                                                                               \
    "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_new\",\"vocab_size\":256,\"n_positions\":256,\"n_embd\":%d,"        \
    "\"n_layer\":%d,\"n_head\":%d,\"layer_norm_epsilon\":1e-5}"

static void path_of(char path[PATH_BYTES], const struct workplace *w, const char *name)
{
    assert(snprintf(path, PATH_BYTES, "%s/%s", w->path, name) < PATH_BYTES);
}

void workplace_write(const struct workplace *w, const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    write_file(path, data, bytes);
}

char *workplace_read(const struct workplace *w, const char *name, size_t *bytes)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    return read_file(path, bytes);
}

bool workplace_exists(const struct workplace *w, const char *name)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    return access(path, F_OK) == 0;
}

int workplace_entries(const struct workplace *w, const char *name)
{
    char path[PATH_BYTES];
    int count = 0;
    DIR *dir;

    path_of(path, w, name);
    dir = opendir(path);
    if (dir == NULL)
        return -1;
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

/* Of a link only the link: what is behind it may be the source tree's. */
static void remove_tree(const char *path)
{
    DIR *dir;

    if (unlink(path) == 0 || (dir = opendir(path)) == NULL)
        return;
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char child[PATH_BYTES];

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        assert(snprintf(child, sizeof(child), "%s/%s", path, entry->d_name) < (int)sizeof(child));
        remove_tree(child);
    }
    closedir(dir);
    rmdir(path);
}

void workplace_remove(const struct workplace *w, const char *name)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    remove_tree(path);
}

void workplace_make_dir(const struct workplace *w, const char *name)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    assert(mkdir(path, 0700) == 0);
}

char *workplace_expand(const struct workplace *w, const char *text)
{
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);

    assert(file != NULL);
    for (const char *at = text; *at != '\0';) {
        if (strncmp(at, "{w}", 3) == 0) {
            fputs(w->path, file);
            at += 3;
        } else {
            fputc(*at++, file);
        }
    }
    assert(fclose(file) == 0);
    return out;
}

void workplace_run(const struct workplace *w, struct program *p, const char *command)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;

    program_split(line, words, &redirect);
    program_run(p, words, redirect);
    free(line);
}

void workplace_run_ok(const struct workplace *w, struct program *p, const char *command)
{
    workplace_run(w, p, command);
    if (p->code != 0)
        fprintf(stderr, "strata %s\n%s", command, p->err);
    assert(p->code == 0);
}

void workplace_start(const struct workplace *w, struct program *p, const char *command)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;

    program_split(line, words, &redirect);
    program_start(p, words, redirect);
    free(line);
}

void workplace_start_piped(const struct workplace *w, struct program *p, const char *command)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;

    program_split(line, words, &redirect);
    program_start_piped(p, words);
    free(line);
}

static void run_ok(const struct workplace *w, const char *command)
{
    struct program p;

    workplace_run_ok(w, &p, command);
    program_free(&p);
}

/* --- good --- */

static void write_text(const struct workplace *w)
{
    char *text = malloc(TEXT_BYTES);

    assert(text != NULL);
    for (uint32_t i = 0; i < TEXT_BYTES; i++)
        text[i] = "in the beginning was the word. "[i % 31];
    workplace_write(w, "text", text, TEXT_BYTES);
    free(text);
}

void workplace_create(struct workplace *w)
{
    static const char machine[] = "{\"name\":\"test\",\"matmul_flops\":1e11,\"upload\":1e10,\"download\":1e10,\"read\":1e9,"
                                  "\"write\":1e9,\"mixed\":1e9,\"update\":1e9}";
    static const char slow[] = "{\"name\":\"slow\",\"matmul_flops\":2e9,\"upload\":1e10,\"download\":1e10,\"read\":1e8,"
                               "\"write\":1e8,\"mixed\":1e8,\"update\":1e9}";

    *w = (struct workplace){.path = "/tmp/strata-test-XXXXXX"};
    assert(mkdtemp(w->path) != NULL);
    workplace_make_dir(w, "nvme");
    workplace_write(w, "file", "x", 1);
    workplace_write(w, "machine.json", machine, strlen(machine));
    workplace_write(w, "slow.json", slow, strlen(slow));
    write_text(w);
    run_ok(w, "tokens {w}/text --out {w}/good.bin --heldout 0.5");
    run_ok(
        w,
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine {w}/machine.json --quiet --out {w}/model");
}

void workplace_destroy(struct workplace *w)
{
    char path[PATH_BYTES];

    if (w->mounted) {
        path_of(path, w, "full");
        umount2(path, MNT_DETACH);
        path_of(path, w, "ro");
        umount2(path, MNT_DETACH);
    }
    remove_tree(w->path);
}

int workplace_setup(void **state)
{
    static struct workplace w;

    signal(SIGINT,
           SIG_DFL); /* they are ignored under nohup and in a script's background, and programs started here would be deaf */
    signal(SIGHUP, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
    workplace_create(&w);
    *state = &w;
    return 0;
}

int workplace_teardown(void **state)
{
    workplace_destroy(*state);
    return 0;
}

/* --- damaged --- */

static void put_word(char *tokens, uint32_t index, int32_t value)
{
    memcpy(tokens + 4 * index, &value, sizeof(value));
}

static void damage_tokens(const struct workplace *w)
{
    const uint16_t wild = 300;
    size_t bytes;
    char *good = workplace_read(w, "good.bin", &bytes), *copy = malloc(bytes);

    assert(copy != NULL);
    workplace_write(w, "bad-empty.bin", good, 0);
    workplace_write(w, "bad-short-header.bin", good, HEADER_BYTES / 2);
    workplace_write(w, "bad-truncated.bin", good, bytes - 1);
    memcpy(copy, good, bytes);
    put_word(copy, 0, 1);
    workplace_write(w, "bad-magic.bin", copy, bytes);
    memcpy(copy, good, bytes);
    put_word(copy, 1, 99);
    workplace_write(w, "bad-version.bin", copy, bytes);
    memcpy(copy, good, bytes);
    put_word(copy, 2, -5);
    workplace_write(w, "bad-count.bin", copy, bytes);
    memcpy(copy, good, bytes);
    memcpy(copy + HEADER_BYTES + 20, &wild, sizeof(wild));
    workplace_write(w, "bad-range.bin", copy, bytes);
    memcpy(copy, good, bytes);
    put_word(copy, 3, 50257);
    workplace_write(w, "bad-vocabulary.bin", copy, bytes);
    put_word(copy, 3, 256);
    put_word(copy, 4, -1);
    put_word(copy, 5, -1);
    workplace_write(w, "bad-source.bin", copy, bytes);
    memcpy(copy, good, bytes);
    put_word(copy, 2, 10);
    put_word(copy, 4, 10);
    put_word(copy, 5, 0);
    workplace_write(w, "bad-small.bin", copy, HEADER_BYTES + 20);
    free(good);
    free(copy);
}

static void make_pipe(const struct workplace *w, const char *name)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    assert(mkfifo(path, 0600) == 0);
}

/* A link to `target` in its own directory. */
static void make_link(const struct workplace *w, const char *name, const char *target)
{
    char path[PATH_BYTES];

    path_of(path, w, name);
    assert(symlink(target, path) == 0);
}

/* Nobody writes to them: who waits for that waits for ever. */
static void put_pipes(const struct workplace *w, const char *config)
{
    make_pipe(w, "pipe");
    workplace_make_dir(w, "model-pipe");
    make_pipe(w, "model-pipe/config.json");
    workplace_make_dir(w, "model-pipe-weights");
    workplace_write(w, "model-pipe-weights/config.json", config, strlen(config));
    make_pipe(w, "model-pipe-weights/model.safetensors");
}

/* A model directory with this config.json and these weights (NULL: none). */
static void model_dir(const struct workplace *w, const char *name, const char *config, const char *weights, size_t bytes)
{
    char path[PATH_BYTES];

    workplace_make_dir(w, name);
    assert(snprintf(path, sizeof(path), "%s/config.json", name) < (int)sizeof(path));
    if (config != NULL)
        workplace_write(w, path, config, strlen(config));
    assert(snprintf(path, sizeof(path), "%s/model.safetensors", name) < (int)sizeof(path));
    if (weights != NULL)
        workplace_write(w, path, weights, bytes);
}

/* The first `from` in data becomes `to`, of the same length. */
static void patch(char *data, size_t bytes, const char *from, const char *to)
{
    char *at = memmem(data, bytes, from, strlen(from));

    assert(at != NULL && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

static void patched_model(const struct workplace *w, const char *name, const char *from, const char *to)
{
    size_t config_bytes, bytes;
    char *config = workplace_read(w, "model/config.json", &config_bytes);
    char *weights = workplace_read(w, "model/model.safetensors", &bytes);

    patch(weights, bytes, from, to);
    model_dir(w, name, config, weights, bytes);
    free(config);
    free(weights);
}

static void damage_models(const struct workplace *w)
{
    size_t config_bytes, bytes;
    char *config = workplace_read(w, "model/config.json", &config_bytes);
    char *weights = workplace_read(w, "model/model.safetensors", &bytes);
    char other[512];
    uint64_t huge = UINT64_C(1) << 40;

    put_pipes(w, config);
    workplace_make_dir(w, "model-empty");
    model_dir(w, "model-window", WINDOW_JSON, NULL, 0);
    model_dir(w, "model-generation", config, weights, bytes);
    workplace_write(w, "model-generation/generation_config.json", "{\"eos_token_id\":\"end\"}", 22);
    model_dir(w, "model-loop", config, weights, bytes);
    make_link(w, "model-loop/generation_config.json", "generation_config.json");
    model_dir(w, "model-loop-weights", config, NULL, 0);
    make_link(w, "model-loop-weights/model.safetensors", "model.safetensors");
    model_dir(w, "model-penalty", config, weights, bytes);
    workplace_write(w, "model-penalty/generation_config.json", "{\"repetition_penalty\":1e-300}", 29);
    model_dir(w, "model-broken", "{\"model_type\":", weights, bytes);
    model_dir(w, "model-type", "{\"model_type\":\"bert\"}", weights, bytes);
    model_dir(w, "model-keys", "{\"model_type\":\"gpt2\"}", weights, bytes);
    model_dir(w, "model-noweights", config, NULL, 0);
    model_dir(w, "model-truncated", config, weights, bytes - 100);
    model_dir(w, "model-noheader", config, weights, 4);
    snprintf(other, sizeof(other), MODEL_JSON, 64, 4, 4);
    model_dir(w, "model-shape", other, weights, bytes);
    snprintf(other, sizeof(other), MODEL_JSON, 128, 5, 4);
    model_dir(w, "model-layers", other, weights, bytes);
    snprintf(other, sizeof(other), MODEL_JSON, 128, 4, 3);
    model_dir(w, "model-heads", other, weights, bytes);
    patched_model(w, "model-renamed", "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.wright");
    patched_model(w, "model-dtype", "\"BF16\"", "\"I8_8\"");
    patched_model(w, "model-json", "{\"__metadata__\"", "[\"__metadata__\"");
    memcpy(weights, &huge, sizeof(huge));
    model_dir(w, "model-header", config, weights, bytes);
    free(config);
    free(weights);
}

void workplace_damage(const struct workplace *w)
{
    damage_tokens(w);
    damage_models(w);
}

/* --- mounts --- */

void workplace_mount(struct workplace *w)
{
    char full[PATH_BYTES], ro[PATH_BYTES];

    workplace_make_dir(w, "full");
    workplace_make_dir(w, "ro");
    path_of(full, w, "full");
    path_of(ro, w, "ro");
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", full, "tmpfs", 0, "size=1m") != 0 || mount("tmpfs", ro, "tmpfs", MS_RDONLY, "size=64m") != 0) {
        snprintf(w->not_mounted, sizeof(w->not_mounted), "mounting is not allowed here: %s", strerror(errno));
        return;
    }
    w->mounted = true;
}

void workplace_digests(const struct workplace *w, const char *command, char out[160])
{
    struct program p;
    const char *at;

    workplace_run_ok(w, &p, command);
    at = strstr(p.out, "weights_digest");
    assert(at != NULL);
    snprintf(out, 160, "%s", at);
    program_free(&p);
}
