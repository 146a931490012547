/* core/system/hub_id.h - names of the Hugging Face hub, ORG/NAME and ORG/NAME@REVISION, as text; nothing here looks at a file. */
#ifndef CORE_SYSTEM_HUB_ID_H
#define CORE_SYSTEM_HUB_ID_H

#include <stdbool.h>
#include <stddef.h>

#define ST_HUB_WORD_MAX    96u /* bytes of an organisation, a name, a revision, as the hub has them */
#define ST_HUB_COMMAND_MAX 384u

/* Its words, which lie in the name itself. */
struct st_hub_id {
    size_t org_bytes; /* which it begins with */
    const char *name;
    size_t name_bytes;
    const char *revision; /* "main" where none is given; refs/pr/1 has slashes */
};

/** A word of a name there: no separator, and no way up. */
bool st_hub_is_word(const char *text, size_t length);
/** False: it is no such name, and nothing is set. */
bool st_hub_split(struct st_hub_id *out, const char *id);
bool st_hub_is_id(const char *name);
/** The command that fetches it: "hf download ORG/NAME --revision REVISION". */
void st_hub_command(char out[ST_HUB_COMMAND_MAX], const char *id);

#endif
