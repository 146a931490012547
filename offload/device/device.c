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

bool st_device_is_index(const char *text)
{
    const size_t digits = strspn(text, "0123456789");

    return digits > 0 && digits <= INDEX_DIGITS_MAX && text[digits] == '\0';
}

const struct st_device_ops *st_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        const size_t length = strlen(devices[i]->name);

        if (strncmp(devices[i]->name, name, length) != 0)
            continue;
        if (name[length] == '\0' || /* or it is one of several of its kind */
            (name[length] == ':' && devices[i]->memory != NULL && st_device_is_index(name + length + 1)))
            return devices[i];
    }
    return NULL;
}

uint32_t st_device_index(const char *name)
{
    const char *colon = strchr(name, ':');

    return colon != NULL ? (uint32_t)strtoul(colon + 1, NULL, 10) : 0;
}
