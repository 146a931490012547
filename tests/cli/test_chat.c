/* tests/cli/test_chat.c - text and conversations: what transformers makes of the same files, on pipes and on terminals. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/terminal.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#define FP32 " --set bf16.enabled=false --threads 2"
#define ON_NVME                                                                                                                  \
    " --device-memory 2MiB --nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme"    \
    " --set strata.cache=0"
#define SLOW " --set strata.io_method=fake --fake-latency-us 20000"

static const char *const models[] = {"qwen", "llama"};
#define MODEL_COUNT (sizeof(models) / sizeof(models[0]))

static st_json *golden_of(const char *model)
{
    char path[128], *text;
    size_t bytes;
    st_json *root;

    snprintf(path, sizeof(path), "tests/golden/chat/%s/golden.json", model);
    text = read_file(path, &bytes);
    assert_int_equal(st_json_parse(&root, text, bytes, path), STRATA_OK);
    free(text);
    return root;
}

static const char *string_of(const st_json *n, const char *key)
{
    assert_non_null(st_json_get(n, key));
    return st_json_string(st_json_get(n, key));
}

static uint32_t count_of(const st_json *array)
{
    uint32_t count = 0;

    assert_non_null(array);
    for (const st_json *n = st_json_first(array); n != NULL; n = st_json_next(n))
        count++;
    return count;
}

static void assert_same_numbers(const st_json *a, const st_json *b)
{
    const st_json *x, *y;

    assert_int_equal(count_of(a), count_of(b));
    for (x = st_json_first(a), y = st_json_first(b); x != NULL; x = st_json_next(x), y = st_json_next(y))
        assert_int_equal((long)st_json_number(x), (long)st_json_number(y));
}

/* Run with this on standard input, to its end; p->out and p->err are filled. */
static void run_with(const struct workplace *w, struct program *p, const char *command, const char *input)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;
    int ends[2];

    program_split(line, words, &redirect);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], input, strlen(input)), (ssize_t)strlen(input)); /* less than a pipe holds */
    close(ends[1]);
    program_run_in(p, words, ends[0]);
    close(ends[0]);
    free(line);
}

static void run_well(const struct workplace *w, struct program *p, const char *command, const char *input)
{
    run_with(w, p, command, input);
    if (p->code != 0)
        fail_msg("%s: exit code %d: %s", command, p->code, p->err);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

/* --- prompts --- */

static void check_continuation(const struct workplace *w, const char *model, const st_json *prompt, const char *placement)
{
    char command[512];
    struct program p;
    st_json *root;
    size_t bytes;

    workplace_write(w, "prompt", string_of(prompt, "text"), strlen(string_of(prompt, "text")));
    snprintf(command, sizeof(command),
             "generate --model tests/golden/chat/%s --prompt-file {w}/prompt --max-tokens 64 --quiet --json" FP32 "%s", model,
             placement);
    run_well(w, &p, command, "");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "output"), STRATA_OK);
    assert_int_equal((uint32_t)st_json_number(st_json_get(root, "prompt_tokens")), count_of(st_json_get(prompt, "tokens")));
    assert_same_numbers(st_json_get(root, "tokens"), st_json_get(prompt, "new"));
    assert_string_equal(string_of(root, "text"), string_of(prompt, "continuation"));
    assert_string_equal(string_of(root, "stopped_by"), count_of(st_json_get(prompt, "new")) < 64 ? "end" : "length");
    st_json_free(root);
    program_free(&p);
    snprintf(command, sizeof(command),
             "generate --model tests/golden/chat/%s --prompt-file {w}/prompt --max-tokens 64 --quiet" FP32 "%s", model,
             placement);
    run_well(w, &p, command, "");
    bytes = strlen(string_of(prompt, "continuation"));
    assert_int_equal(strlen(p.out), bytes + 1);
    assert_memory_equal(p.out, string_of(prompt, "continuation"), bytes);
    program_free(&p);
}

TEST(prompts_are_continued_as_by_transformers)
{
    for (size_t i = 0; i < MODEL_COUNT; i++) {
        st_json *golden = golden_of(models[i]);

        for (const st_json *n = st_json_first(st_json_get(golden, "prompts")); n != NULL; n = st_json_next(n))
            check_continuation(*state, models[i], n, n == st_json_first(st_json_get(golden, "prompts")) ? ON_NVME : "");
        st_json_free(golden);
    }
}

/* A tokenizer may come from elsewhere, and ids ask for none. */
TEST(a_tokenizer_can_be_named)
{
    const struct workplace *w = *state;
    struct program named, ids;

    run_well(w, &named,
             "generate --model tests/golden/chat/qwen --tokenizer tests/golden/tokenizers/qwen2.json --prompt In --max-tokens 3 "
             "--quiet --json",
             "");
    run_well(w, &ids, "generate --model tests/golden/chat/qwen --prompt In --max-tokens 3 --quiet --json", "");
    assert_int_equal(strncmp(named.out, ids.out, strcspn(ids.out, "]")), 0);
    program_free(&named);
    program_free(&ids);
    run_well(w, &ids, "generate --model tests/golden/chat/qwen --prompt-tokens 40,77 --max-tokens 3 --quiet", "");
    assert_int_equal(strspn(ids.out, "0123456789,"), strlen(ids.out) - 1);
    program_free(&ids);
}

/* --- conversations --- */

/* The lines that a user writes, and what is answered. */
static void read_turns(const st_json *turns, char users[1024], char answers[8192])
{
    users[0] = answers[0] = '\0';
    for (const st_json *n = st_json_first(turns); n != NULL; n = st_json_next(n)) {
        strcat(strcat(users, string_of(n, "user")), "\n");
        assert_true(strlen(users) < 900 && strlen(answers) + strlen(string_of(n, "answer")) < 8000);
        strcat(strcat(answers, string_of(n, "answer")), "\n");
    }
}

/* Each line of JSON against a turn.  @return tokens that the cache had in all of them */
static uint64_t check_turns(char *out, const st_json *turns)
{
    uint64_t cached = 0;
    char *rest = NULL, *line = strtok_r(out, "\n", &rest);

    for (const st_json *n = st_json_first(turns); n != NULL; n = st_json_next(n), line = strtok_r(NULL, "\n", &rest)) {
        st_json *root;

        assert_non_null(line);
        assert_int_equal(st_json_parse(&root, line, strlen(line), "output"), STRATA_OK);
        assert_int_equal((uint32_t)st_json_number(st_json_get(root, "prompt_tokens")), count_of(st_json_get(n, "tokens")));
        assert_same_numbers(st_json_get(root, "tokens"), st_json_get(n, "new"));
        assert_string_equal(string_of(root, "text"), string_of(n, "answer"));
        cached += (uint64_t)st_json_number(st_json_get(root, "cached_tokens"));
        st_json_free(root);
    }
    assert_null(line);
    return cached;
}

static void check_conversation(const struct workplace *w, const char *model, const char *key, const char *options, bool reuses)
{
    st_json *golden = golden_of(strrchr(model, '/') + 1);
    const st_json *turns = st_json_get(golden, key);
    char users[1024], answers[8192], command[1024];
    struct program p;
    uint64_t cached;

    read_turns(turns, users, answers);
    snprintf(command, sizeof(command), "generate --model %s --chat --system '%s' --max-tokens 24 --quiet" FP32 "%s", model,
             string_of(golden, "system"), options);
    run_well(w, &p, command, users);
    assert_string_equal(p.out, answers);
    program_free(&p);
    strcat(command, " --json");
    run_well(w, &p, command, users);
    cached = check_turns(p.out, turns);
    if (reuses ? cached < 150 : cached > 2 * count_of(turns))
        fail_msg("%s: %lu tokens were known", command, (unsigned long)cached);
    program_free(&p);
    st_json_free(golden);
}

/* Turn by turn with what the cache has, and, by a template whose beginning changes, without. */
TEST(conversations_are_those_of_transformers)
{
    for (size_t i = 0; i < MODEL_COUNT; i++) {
        char options[128], dir[64];

        snprintf(dir, sizeof(dir), "tests/golden/chat/%s", models[i]);
        check_conversation(*state, dir, "chat", "", true);
        snprintf(options, sizeof(options), " --date 2026-02-03 --template tests/golden/chat/%s/counted.jinja", models[i]);
        check_conversation(*state, dir, "counted", options, false);
    }
    check_conversation(*state, "tests/golden/chat/llama", "chat", ON_NVME, true);
}

/* Answers of one token, which are the same token in the next prompt: all is known but that one, which the model has yet to see.
 */
TEST(the_last_token_is_not_known)
{
    char *rest = NULL;
    uint32_t before = 0, turns = 0, all = 0;
    struct program p;

    run_well(
        *state, &p,
        "generate --model tests/golden/chat/llama --chat --max-tokens 1 --temperature 3 --seed 1 --context 500 --quiet --json",
        "one\ntwo\nthree\nfour\n");
    for (char *line = strtok_r(p.out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest), turns++) {
        st_json *root;

        assert_int_equal(st_json_parse(&root, line, strlen(line), "output"), STRATA_OK);
        assert_true(st_json_number(st_json_get(root, "cached_tokens")) <= before);
        all += st_json_number(st_json_get(root, "cached_tokens")) == before;
        before = (uint32_t)st_json_number(st_json_get(root, "prompt_tokens"));
        st_json_free(root);
    }
    assert_true(turns == 4 && all > 1); /* of the first there is nothing to know */
    program_free(&p);
}

#define CHAT "generate --model tests/golden/chat/qwen --chat --max-tokens 5 --quiet"

static uint32_t lines_of(const char *text)
{
    uint32_t count = 0;

    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

TEST(an_empty_line_or_the_end_ends_it)
{
    static const struct {
        const char *input, *options;
        uint32_t answers;
    } rows[] = {
        {"", "", 0},
        {"\n", "", 0},
        {"one\n\ntwo\n", "", 1},
        {"one\r\ntwo", "", 2},
        {"one\n\r\ntwo\n", "", 1},
        {"one\n", " --prompt x", 1},
        {"two\nlines\n", " --prompt-file -", 1},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[256];
        struct program p;

        snprintf(command, sizeof(command), CHAT " --json%s", rows[i].options);
        run_well(w, &p, command, rows[i].input);
        if (lines_of(p.out) != rows[i].answers || p.err[0] != '\0')
            fail_msg("row %zu: %s%s", i, p.out, p.err);
        program_free(&p);
    }
}

TEST(figures_go_to_standard_error)
{
    const struct workplace *w = *state;
    struct program loud, quiet;

    run_well(w, &loud, "generate --model tests/golden/chat/qwen --chat --max-tokens 5", "one\ntwo\n");
    run_well(w, &quiet, CHAT, "one\ntwo\n");
    assert_string_equal(loud.out, quiet.out);
    assert_non_null(strstr(loud.err, "strata: always the likeliest token (by generation_config.json and defaults)\n"));
    assert_non_null(strstr(loud.err, "tokens of prompt in "));
    assert_non_null(strstr(loud.err, " known) in "));
    assert_null(strstr(loud.err, "> "));      /* nobody is there to be asked */
    assert_null(strstr(loud.err, "moved: ")); /* which would stand below every answer */
    program_free(&loud);
    run_well(w, &loud, "generate --model tests/golden/chat/qwen --prompt one --max-tokens 5", "");
    assert_non_null(strstr(loud.err, "strata: moved: "));
    program_free(&loud);
    program_free(&quiet);
}

TEST(a_full_context_ends_it)
{
    const struct workplace *w = *state;
    struct program p;

    run_with(w, &p, "generate --model tests/golden/chat/qwen --chat --context 60", "tell me\nmore\nand more\n");
    assert_int_equal(p.code, 2);
    assert_true(lines_of(p.out) >= 1);
    assert_non_null(strstr(p.err, "there is room for 60: begin another, or raise --context"));
    program_free(&p);
}

/* --- end tokens, and a model that has none --- */

static void link_to(const struct workplace *w, const char *into, const char *name)
{
    char inside[64], from[128], *to, *path;

    snprintf(from, sizeof(from), "tests/golden/chat/qwen/%s", name);
    snprintf(inside, sizeof(inside), "{w}/%s/%s", into, name);
    to = realpath(from, NULL);
    path = workplace_expand(w, inside);
    assert_true(to != NULL && symlink(to, path) == 0);
    free(to);
    free(path);
}

/* generation_config.json names no end: the tokenizer's counts, or the one that the template puts after an answer. */
TEST(answers_end_without_a_generation_config)
{
    static const char none[] = "{\"eos_token_id\":null}", no_eos[] = "{\"eos_token\":null}";
    const struct workplace *w = *state;
    char *dir = workplace_expand(w, "{w}/qwen"), *template;
    st_json *config;
    size_t bytes;
    char *text = read_file("tests/golden/chat/qwen/tokenizer_config.json", &bytes);

    assert_int_equal(mkdir(dir, 0700), 0);
    link_to(w, "qwen", "config.json");
    link_to(w, "qwen", "model.safetensors");
    link_to(w, "qwen", "tokenizer.json");
    workplace_write(w, "qwen/generation_config.json", none, strlen(none));
    workplace_write(w, "qwen/tokenizer_config.json", text, bytes);
    check_conversation(w, dir, "chat", "", true);
    assert_int_equal(st_json_parse(&config, text, bytes, "tokenizer_config.json"), STRATA_OK);
    template = strdup(string_of(config, "chat_template"));
    workplace_write(w, "qwen/chat_template.jinja", template, strlen(template));
    workplace_write(w, "qwen/tokenizer_config.json", no_eos, strlen(no_eos));
    check_conversation(w, dir, "chat", "", true);
    workplace_remove(w, "qwen");
    st_json_free(config);
    free(template);
    free(text);
    free(dir);
}

static void make_endless(const struct workplace *w)
{
    static const char none[] = "{\"eos_token_id\":null}", plain[] = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    char *dir = workplace_expand(w, "{w}/m");

    assert_int_equal(mkdir(dir, 0700), 0);
    link_to(w, "m", "config.json");
    link_to(w, "m", "model.safetensors");
    link_to(w, "m", "tokenizer.json");
    workplace_write(w, "m/generation_config.json", none, strlen(none));
    workplace_write(w, "m/chat_template.jinja", plain, strlen(plain));
    free(dir);
}

#define ENDLESS "generate --model {w}/m --chat --context 500" ON_NVME " --threads 2" SLOW

static void check_stop(const struct workplace *w, const char *reason)
{
    struct program p;
    st_json *root;

    run_well(w, &p, "generate --model {w}/m --chat --prompt 'go on' --context 300 --quiet --json" FP32, "");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "output"), STRATA_OK);
    assert_string_equal(string_of(root, "stopped_by"), reason);
    st_json_free(root);
    program_free(&p);
}

TEST(the_tokenizers_end_ends_answers)
{
    static const char eos[] = "{\"eos_token\":\"<|im_end|>\"}";
    const struct workplace *w = *state;

    make_endless(w);
    check_stop(w, "context");
    workplace_write(w, "m/tokenizer_config.json", eos, strlen(eos));
    check_stop(w, "end");
    workplace_remove(w, "m");
}

struct talk {
    struct program p;    /* standard output is p.out_fd */
    int input, terminal; /* to write to; the program's end, or -1 */
};

/* A terminal that gives lines, does not echo them, and sends no signals. */
static int open_terminal(int *other)
{
    const int fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    struct termios settings;

    assert_true(fd >= 0 && grantpt(fd) == 0 && unlockpt(fd) == 0);
    *other = open(ptsname(fd), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(*other >= 0 && tcgetattr(*other, &settings) == 0);
    settings.c_lflag &= ~(tcflag_t)(ECHO | ISIG);
    assert_int_equal(tcsetattr(*other, TCSANOW, &settings), 0);
    return fd;
}

static void talk_begin(const struct workplace *w, struct talk *t, const char *command, bool on_terminal)
{
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;
    int out[2], in[2];

    program_split(line, words, &redirect);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    if (on_terminal) {
        t->input = open_terminal(&in[0]);
    } else {
        assert_int_equal(pipe2(in, O_CLOEXEC), 0);
        t->input = in[1];
    }
    program_start_in(&t->p, words, in[0], out[1]);
    t->p.out_fd = out[0];
    t->terminal = on_terminal ? in[0] : -1;
    if (!on_terminal)
        close(in[0]);
    close(out[1]);
    free(line);
}

static void talk_say(const struct talk *t, const char *text)
{
    assert_int_equal(write(t->input, text, strlen(text)), (ssize_t)strlen(text));
}

/* The first byte of an answer, which is not its last. */
static void talk_hear(const struct talk *t)
{
    char byte;

    assert_int_equal(read(t->p.out_fd, &byte, 1), 1);
    assert_true(byte != '\n');
}

static void talk_end(const struct workplace *w, struct talk *t, int code)
{
    program_drain(&t->p);
    program_wait(&t->p);
    close(t->input);
    if (t->terminal >= 0)
        close(t->terminal);
    if (t->p.code != code)
        fail_msg("exit code %d: %s", t->p.code, t->p.err);
    assert_null(strstr(t->p.err, "error"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
}

TEST(ctrl_c_ends_the_answer_and_not_the_conversation)
{
    const struct workplace *w = *state;
    struct talk t;

    make_endless(w);
    talk_begin(w, &t, ENDLESS, true);
    for (int i = 0; i < 2; i++) {
        talk_say(&t, "go on\n");
        talk_hear(&t);
        assert_int_equal(kill(t.p.pid, SIGINT), 0);
        program_wait_for(&t.p, "\n");
    }
    talk_say(&t, "\x04");
    talk_end(w, &t, 0);
    assert_non_null(strstr(t.p.err, "Ctrl-D ends, Ctrl-C stops an answer"));
    assert_non_null(strstr(t.p.err, "> "));
    assert_non_null(strstr(t.p.err, " known) in "));
    program_free(&t.p);
    workplace_remove(w, "m");
}

TEST(the_second_ctrl_c_ends_the_program)
{
    const struct workplace *w = *state;
    struct talk t;

    make_endless(w);
    talk_begin(w, &t, ENDLESS, true);
    talk_say(&t, "go on\n");
    talk_hear(&t);
    assert_int_equal(kill(t.p.pid, SIGINT), 0);
    program_wait_for(&t.p, "\n"); /* the answer has ended; now, or in a moment, the program waits for a message */
    assert_int_equal(kill(t.p.pid, SIGINT), 0);
    assert_int_equal(kill(t.p.pid, SIGTERM), 0);
    program_drain(&t.p);
    program_wait(&t.p);
    assert_true(t.p.code == 130 || t.p.code == 143);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    close(t.input);
    close(t.terminal);
    program_free(&t.p);
    workplace_remove(w, "m");
}

TEST(other_signals_and_pipes_end_it)
{
    static const struct {
        bool on_terminal;
        int number, code;
    } rows[] = {{true, SIGTERM, 143}, {false, SIGINT, 130}, {false, SIGHUP, 129}};
    const struct workplace *w = *state;

    make_endless(w);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct talk t;

        talk_begin(w, &t, ENDLESS, rows[i].on_terminal);
        talk_say(&t, "go on\nand on\n");
        talk_hear(&t);
        assert_int_equal(kill(t.p.pid, rows[i].number), 0);
        assert_int_equal(program_drain(&t.p), '\n');
        talk_end(w, &t, rows[i].code);
        assert_non_null(strstr(t.p.err, " of prompt in "));
        program_free(&t.p);
    }
    workplace_remove(w, "m");
}

/* What a model makes is shown on a terminal, never obeyed. */
TEST(terminals_obey_no_model)
{
    const struct workplace *w = *state;
    st_json *golden = golden_of("qwen");
    const st_json *first = st_json_first(st_json_get(golden, "prompts"));
    struct program p;

    assert_non_null(strchr(string_of(first, "continuation"), '\x19'));
    terminal_run(w, &p, "generate --model tests/golden/chat/qwen --prompt 'In the beginning' --max-tokens 64 --quiet" FP32, 200,
                 "xterm", false);
    assert_int_equal(p.code, 0);
    assert_non_null(strstr(p.out, "\\x19"));
    assert_null(strchr(p.out, '\x19'));
    program_free(&p);
    st_json_free(golden);
}

TEST_GROUP(workplace_setup, workplace_teardown);
