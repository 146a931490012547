/* model/hf/hf_names.c - see hf_names_internal.h. */
#include "model/adapter/adapter.h"
#include "model/family.h"
#include "model/hf/hf_names_internal.h"
#include <stdio.h>
#include <string.h>

static const char head_name[] = "lm_head.weight";

static bool begins(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* What follows the prefixes of a text model within another, NULL: it is no part of that. */
static const char *text_part(const char *name)
{
    static const char *const prefixes[] = {"model.", "language_model.", "text_model."};
    static const char *const parts[] = {"embed_tokens.", "layers.", "norm.", "lm_head."};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (begins(name, prefixes[i])) {
            name += strlen(prefixes[i]);
            i = (size_t)-1; /* one may follow another */
        }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (begins(name, parts[i]))
            return name;
    return NULL;
}

bool st_hf_name_is_head(const struct st_model_config *config, const char *name)
{
    const char *part = config->wrapper != NULL ? text_part(name) : name;

    return part != NULL && strcmp(part, head_name) == 0;
}

/* Behind the prefix of an adapter's tensors. */
static const char *past_adapter(const char *name)
{
    return st_adapter_is_own(name) ? name + strlen(ST_ADAPTER_PREFIX) : name;
}

bool st_hf_name_is_beside(const struct st_model_config *config, const char *name)
{
    return config->wrapper != NULL && text_part(past_adapter(name)) == NULL;
}

static void put(char out[ST_HF_NAME_BYTES], const char *prefix, const char *name)
{
    if ((size_t)snprintf(out, ST_HF_NAME_BYTES, "%s%s", prefix, name) >= ST_HF_NAME_BYTES)
        out[0] = '\0';
}

void st_hf_name_in_model(char out[ST_HF_NAME_BYTES], const struct st_model_config *config, const char *name)
{
    const char *whole = config->family == ST_FAMILY_GPT2 ? "transformer." : "model.";
    const char *part = config->wrapper != NULL && !st_adapter_is_own(name) ? text_part(name) : NULL;
    const bool is_full = begins(name, whole) || begins(name, "lm_head.") || st_adapter_is_own(name);

    if (part != NULL && !begins(part, "lm_head."))
        put(out, config->wrapper->text, part);
    else if (part != NULL)
        put(out, "", part);
    else
        put(out, is_full ? "" : whole, name);
}

void st_hf_name_in_file(char out[ST_HF_NAME_BYTES], const struct st_model_config *config, const char *name, bool older)
{
    const struct st_wrapper *w = config->wrapper;

    if (w == NULL || !older)
        put(out, "", name);
    else if (strcmp(name, head_name) == 0)
        put(out, "", w->older_head);
    else
        put(out, w->older, name + strlen(w->text));
}

static void cut(char *from, size_t bytes)
{
    memmove(from, from + bytes, strlen(from + bytes) + 1);
}

/* Takes the adapter's name out of one of its tensors', and the word for what is saved whole. */
static void cut_adapters_name(char *name)
{
    static const char saved[] = ".modules_to_save.";
    static const char *const words[] = {".lora_A.", ".lora_B.", saved};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char *word = strstr(name, words[i]), *own = word != NULL ? word + strlen(words[i]) : NULL;

        if (own == NULL)
            continue;
        if (own[strcspn(own, ".")] == '.')
            cut(own, strcspn(own, ".") + 1);
        if (words[i] == saved)
            cut(word, sizeof(saved) - 2);
        return;
    }
}

void st_hf_name_in_adapter(char *out, size_t bytes, const struct st_model_config *config, const char *name)
{
    const char *part = config->wrapper != NULL && st_adapter_is_own(name) ? text_part(past_adapter(name)) : NULL;
    int length;

    if (part == NULL)
        length = snprintf(out, bytes, "%s", name);
    else
        length = snprintf(out, bytes, ST_ADAPTER_PREFIX "%s%s", begins(part, "lm_head.") ? "" : config->wrapper->text, part);
    if ((size_t)length >= bytes)
        out[0] = '\0';
    cut_adapters_name(out);
}
