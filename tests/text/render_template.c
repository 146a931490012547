/* render_template.c - renders conversations with a chat template, for tools/compare_templates.py and
 * tools/make_golden_templates.py.
 *
 *     render_template --builtin NAME            prints a built-in template
 *     render_template TEMPLATE CONVERSATIONS    one JSON object a line: messages, variables, add_generation_prompt;
 *                                               prints a line each: the text in hexadecimal and its origins, or "error: ..." */
#include "text/template/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20 };

static char *read_whole(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(FILE_BYTES_MAX + 1);

    if (file == NULL || text == NULL) {
        perror(path);
        exit(2);
    }
    *bytes = fread(text, 1, FILE_BYTES_MAX, file);
    text[*bytes] = '\0';
    fclose(file);
    return text;
}

static void print_line(const struct st_template *t, const st_json *talk)
{
    static const struct st_template_variable specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    const st_json *prompt = st_json_get(talk, "add_generation_prompt");
    const struct st_template_input input = {.messages = st_json_get(talk, "messages"),
                                            .variables = st_json_get(talk, "variables"),
                                            .specials = specials,
                                            .special_count = 2,
                                            .add_generation_prompt = prompt != NULL && st_json_bool(prompt),
                                            .year = 2026,
                                            .month = 2,
                                            .day = 3};
    struct st_rendered out;

    if (st_template_render(&out, t, &input) != STRATA_OK) {
        printf("error: %s\n", strata_last_error());
        return;
    }
    for (size_t i = 0; i < out.bytes; i++)
        printf("%02x", (unsigned)(unsigned char)out.text[i]);
    printf(" ");
    for (size_t i = 0; i < out.bytes; i++)
        printf("%x", (unsigned)out.origins[i]);
    printf("\n");
    st_rendered_free(&out);
}

static int print_builtin(const char *name)
{
    const char *text = st_template_builtin(name);

    if (text == NULL)
        return 2;
    fputs(text, stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct st_template *t = NULL;
    size_t bytes;
    char *text, *talks;
    strata_status st;

    if (argc != 3)
        return 2;
    if (strcmp(argv[1], "--builtin") == 0)
        return print_builtin(argv[2]);
    text = read_whole(argv[1], &bytes);
    st = st_template_open(&t, text, bytes, argv[1]);
    talks = read_whole(argv[2], &bytes);
    for (char *line = strtok(talks, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        st_json *talk;

        if (st != STRATA_OK || st_json_parse(&talk, line, strlen(line), argv[2]) != STRATA_OK) {
            printf("error: %s\n", strata_last_error());
            continue;
        }
        print_line(t, talk);
        st_json_free(talk);
    }
    st_template_close(t);
    free(text);
    free(talks);
    return 0;
}
