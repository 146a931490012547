/* core/trace/written.c - see written.h. */
#include "core/trace/written.h"
#include "core/base/print.h"
#include "core/base/size.h"

#include <math.h>

void st_written_counted(struct st_written *out, double step_bytes, uint64_t bytes, double seconds)
{
    *out = (struct st_written){.step_bytes = step_bytes > 0 ? (uint64_t)step_bytes : 0,
                               .run_bytes = (double)bytes,
                               .day_bytes = seconds > 0 ? (double)bytes / seconds * ST_WRITTEN_DAY : (double)NAN};
}

/* A run of very many steps writes more than a whole number of bytes can say. */
static const char *bytes_text(char buf[24], double bytes)
{
    if (bytes < 0x1p64)
        return st_size_text(buf, (uint64_t)bytes);
    snprintf(buf, 24, "over 16 EiB");
    return buf;
}

void st_written_print(const struct st_written *e, const char *label, FILE *file)
{
    char text[24];

    if (e->step_bytes == 0 && !(e->run_bytes > 0))
        return;
    st_print(file, "  %s%s a step", label, st_size_text(text, e->step_bytes));
    if (isfinite(e->run_bytes))
        st_print(file, ", %s by the run", bytes_text(text, e->run_bytes));
    if (isfinite(e->day_bytes))
        st_print(file, ", %s a day at this pace", bytes_text(text, e->day_bytes));
    st_print_text(file, "; a drive's data sheet says how much it endures (TBW, DWPD)\n");
}

void st_written_put(const struct st_written *e, struct st_json_writer *w)
{
    st_json_object_open(w, "written");
    st_json_put_u64(w, "step", e->step_bytes);
    st_json_put_double(w, "run", e->run_bytes);
    st_json_put_double(w, "day", e->day_bytes);
    st_json_object_close(w);
}
