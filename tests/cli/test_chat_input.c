/* tests/cli/test_chat_input.c - what a conversation cannot go on from: messages that are no text or too long, templates that
 * refuse or make nothing; names that are too long; and what an answer takes from the turns before. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include "core/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHAT        "generate --model tests/golden/chat/qwen --chat --max-tokens 2 --quiet --threads 1 "
#define MESSAGE_MAX (1u << 20)

/* Run the command with these bytes on standard input. */
static void run_in(const struct workplace *w, struct program *p, const char *command, const char *bytes, size_t count)
{
    const int in = memfd_create("in", MFD_CLOEXEC);
    char *line = workplace_expand(w, command);
    const char *words[WORDS_MAX], *redirect;

    assert_true(in >= 0 && write(in, bytes, count) == (ssize_t)count && lseek(in, 0, SEEK_SET) == 0);
    program_split(line, words, &redirect);
    program_run_in(p, words, in);
    close(in);
    free(line);
}

static void must_be(const struct program *p, int code, const char *wanted)
{
    if (p->code != code || strstr(p->err, wanted) == NULL)
        fail_msg("exit code %d, not %d with \"%s\":\n%s", p->code, code, wanted, p->err);
}

TEST(messages_are_text_of_some_length)
{
    const struct workplace *w = *state;
    char *message = malloc(MESSAGE_MAX + 2);
    struct program p;

    run_in(w, &p, CHAT, "a\0b\n", 4);
    must_be(&p, 2, "a message has a zero byte: it is not text");
    assert_string_equal(p.out, "");
    program_free(&p);
    assert_non_null(message);
    memset(message, ' ', MESSAGE_MAX + 1);
    message[MESSAGE_MAX + 1] = '\n';
    run_in(w, &p, CHAT, message, MESSAGE_MAX + 2);
    must_be(&p, 2, "a message is longer than 1048576 bytes");
    program_free(&p);
    run_in(w, &p, CHAT, message + 1, MESSAGE_MAX + 1); /* the longest: too long for the model alone */
    must_be(&p, 2, "tokens, and there is room for");
    program_free(&p);
    free(message);
}

/* A line ends with \n, \r\n or the input; an empty one ends the conversation, before messages that follow. */
TEST(lines_end_in_either_way)
{
    static const char *const same[] = {"hi\n", "hi\r\n", "hi", "hi\n\nmore\n", "hi\r\n\r\nmore\n"};
    const struct workplace *w = *state;
    struct program first;

    run_in(w, &first, CHAT, same[0], strlen(same[0]));
    assert_int_equal(first.code, 0);
    for (size_t i = 1; i < sizeof(same) / sizeof(same[0]); i++) {
        struct program p;

        run_in(w, &p, CHAT, same[i], strlen(same[i]));
        must_be(&p, 0, "");
        assert_string_equal(p.out, first.out);
        program_free(&p);
    }
    program_free(&first);
}

TEST(templates_refuse_or_make_nothing)
{
    static const char refuses[] = "{% if messages|length > 1 %}{{ raise_exception('one message alone') }}{% endif %}"
                                  "{% for m in messages %}{{ m.content }}{% endfor %}";
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "refuses.jinja", refuses, strlen(refuses));
    workplace_write(w, "nothing.jinja", "{# nothing #}", 13);
    run_in(w, &p, CHAT "--template {w}/refuses.jinja", "first\nsecond\n", 13);
    must_be(&p, 2, "the template refuses the conversation: one message alone");
    program_free(&p);
    run_in(w, &p, CHAT "--template {w}/nothing.jinja", "first\n", 6);
    must_be(&p, 2, "the template writes nothing for this conversation");
    program_free(&p);
    workplace_run(w, &p, CHAT "--template {w}/nothing.jinja --prompt first");
    must_be(&p, 2, "the template writes nothing for this conversation");
    program_free(&p);
}

/* Names longer than there is room for, each under the option that gave it. */
TEST(names_may_be_too_long)
{
    static const struct {
        const char *command; /* ends in the option */
        unsigned letters, times;
        const char *wanted;
    } rows[] = {
        {"train --model nano --data {w}/good.bin --max-steps 1 --seq-len 32 --nvme", 250, 20,
         "--nvme: the directories' names are longer than 4096 bytes together"},
        {"train --model nano --data {w}/good.bin --max-steps 1 --seq-len 32 --master-addr", 300, 1, "--master-addr: more than "},
        {"info --measure --nvme", 3000, 1, "strata.nvme: a directory's name has 3000 bytes"},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[8192];
        size_t length = (size_t)snprintf(command, sizeof(command), "%s", rows[i].command);
        struct program p;

        for (unsigned k = 0; k < rows[i].times; k++) {
            command[length++] = ' ';
            memset(command + length, 'a', rows[i].letters);
            length += rows[i].letters;
        }
        command[length] = '\0';
        workplace_run(w, &p, command);
        must_be(&p, 2, rows[i].wanted);
        program_free(&p);
    }
}

/* By so large a penalty no token comes twice in whichever turn it has come, though the cache has the turns before. */
TEST(a_penalty_goes_on_through_the_turns)
{
    bool seen[4096] = {false};
    uint32_t turns = 0;
    char *rest = NULL;
    struct program p;

    run_in(*state, &p,
           "generate --model tests/golden/chat/llama --chat --max-tokens 8 --repetition-penalty 1000000 --context 400 --quiet "
           "--json",
           "one\ntwo\none\n", 12);
    must_be(&p, 0, "");
    for (char *line = strtok_r(p.out, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest), turns++) {
        st_json *root;

        assert_int_equal(st_json_parse(&root, line, strlen(line), "output"), STRATA_OK);
        assert_true((st_json_number(st_json_get(root, "cached_tokens")) > 0) == (turns > 0));
        for (const st_json *n = st_json_first(st_json_get(root, "tokens")); n != NULL; n = st_json_next(n)) {
            const uint32_t token = (uint32_t)st_json_number(n);

            assert_true(token < sizeof(seen));
            if (seen[token])
                fail_msg("turn %u: token %u comes again", turns + 1, token);
            seen[token] = true;
        }
        st_json_free(root);
    }
    assert_int_equal(turns, 3);
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
