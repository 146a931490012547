/* gpu_report_none.c - the report of a build without CUDA. */
#include "offload/device/cuda/gpu_report.h"

#include <stdio.h>

void st_gpu_report(struct st_gpu_report *out)
{
    *out = (struct st_gpu_report){0};
    snprintf(out->problem, sizeof(out->problem), "built without CUDA support");
    snprintf(out->nccl_problem, sizeof(out->nccl_problem), "%s", out->problem);
}
