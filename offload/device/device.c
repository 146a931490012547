/* offload/device/device.c - the devices this build has, by name. */
#include "offload/device/device.h"
#include <stdlib.h>
#include <string.h>

#define INDEX_DIGITS_MAX 3u

static const struct st_device_ops *const devices[] = {
    &st_device_cpu_ops,
    &st_device_paced_ops,
#ifdef STRATA_HAVE_CUDA
    &st_device_cuda_ops,
#endif
};

/* What follows the colon must be a number, and the device must be of a kind of which there may be several. */
static bool is_index(const struct st_device_ops *ops, const char *text)
{
    const size_t digits = strspn(text, "0123456789");

    return ops->memory != NULL && digits > 0 && digits <= INDEX_DIGITS_MAX && text[digits] == '\0';
}

const struct st_device_ops *st_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        const size_t length = strlen(devices[i]->name);

        if (strncmp(devices[i]->name, name, length) != 0)
            continue;
        if (name[length] == '\0' || (name[length] == ':' && is_index(devices[i], name + length + 1)))
            return devices[i];
    }
    return NULL;
}

uint32_t st_device_index(const char *name)
{
    const char *colon = strchr(name, ':');

    return colon != NULL ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
}
