/* tests/common/large_tokenizer.c - see large_tokenizer.h. */
#include "tests/common/large_tokenizer.h"
#include "tests/common/test.h"

#include <stdio.h>

uint32_t large_tokenizer_tokens(uint32_t letters, uint32_t length)
{
    uint32_t count = 1, all = 0;

    for (uint32_t i = 1; i <= (length == 0 ? LARGE_TOKENIZER_LENGTH : length); i++) {
        count *= letters;
        all += count;
    }
    return length == 0 ? all : count;
}

void large_tokenizer_text(char text[LARGE_TOKENIZER_LENGTH + 1], uint32_t letters, uint32_t length, uint32_t index)
{
    text[length] = '\0';
    while (length-- > 0) {
        text[length] = (char)('a' + index % letters);
        index /= letters;
    }
}

static void put_vocab(FILE *file, uint32_t letters)
{
    char text[LARGE_TOKENIZER_LENGTH + 1];
    uint32_t id = 0;

    for (uint32_t length = 1; length <= LARGE_TOKENIZER_LENGTH; length++)
        for (uint32_t i = 0; i < large_tokenizer_tokens(letters, length); i++, id++) {
            large_tokenizer_text(text, letters, length, i);
            fprintf(file, "%s\"%s\":%u", id > 0 ? "," : "", text, id);
        }
}

static void put_merges(FILE *file, uint32_t letters)
{
    char text[LARGE_TOKENIZER_LENGTH + 1];

    for (uint32_t length = 2; length <= LARGE_TOKENIZER_LENGTH; length++)
        for (uint32_t i = 0; i < large_tokenizer_tokens(letters, length); i++) {
            large_tokenizer_text(text, letters, length, i);
            fprintf(file, "%s[\"%.*s\",\"%s\"],[\"%.1s\",\"%s\"]", length > 2 || i > 0 ? "," : "", (int)length - 1, text,
                    text + length - 1, text, text + 1);
        }
}

void large_tokenizer_put(const char *path, uint32_t letters)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs("{\"model\":{\"type\":\"BPE\",\"vocab\":{", file);
    put_vocab(file, letters);
    fputs("},\"merges\":[", file);
    put_merges(file, letters);
    fputs("]}}", file);
    assert_int_equal(fclose(file), 0);
}
