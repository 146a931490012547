/* offload/device.c - the devices this build has, by name. */
#include "offload/device.h"
#include <string.h>

static const struct st_device_ops *const devices[] = {&st_device_cpu_ops, &st_device_paced_ops};

const struct st_device_ops *st_device_find(const char *name)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        if (strcmp(devices[i]->name, name) == 0)
            return devices[i];
    return NULL;
}
