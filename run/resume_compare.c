/* run/resume_compare.c - see run/resume_compare.h. */
#include "run/resume_compare.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "run/run_describe.h"
#include "strata/data.h"

#include <inttypes.h>
#include <string.h>

static strata_status load_configs(struct st_config config[2], struct st_config_source *source[2], const struct st_manifest *was,
                                  const struct st_manifest *is, const char *name)
{
    struct st_config_opts opts = {.allow_unknown = true, .any_length = true, .ranks = was->world};
    strata_status st = st_config_load_text(&config[0], &source[0], was->config, strlen(was->config), name, &opts);

    opts.ranks = is->world;
    if (st == STRATA_OK)
        st = st_config_load_text(&config[1], &source[1], is->config, strlen(is->config), "the configuration", &opts);
    return st == STRATA_E_CONFIG ? st_error_prefix(st, "the checkpoint's own configuration") : st;
}

/* Where the first member that differs begins: of a list of names, or of an object, whose members may be lists themselves. */
static size_t find_difference(const char *was, const char *is)
{
    const bool object = was[0] == '{';
    bool quoted = false;
    size_t begin = 0;
    int depth = 0;

    for (size_t at = 0; was[at] != '\0' && was[at] == is[at]; at++) {
        if (object && was[at] == '"' && was[at - 1] != '\\')
            quoted = !quoted;
        if (object && !quoted)
            depth += (was[at] == '{' || was[at] == '[') - (was[at] == '}' || was[at] == ']');
        if (was[at] == ',' && !quoted && depth <= 1)
            begin = at + 1;
    }
    return begin;
}

/* Keys that decide which tensors there are, and in which groups.  One adapter may be written in two ways: its key is last. */
static strata_status compare_shaping(const struct st_config config[2], const char *name)
{
    static const char *const keys[] = {"strata.quantization", "strata.freeze", "strata.decay_all", "strata.lora"};
    char was[ST_CONFIG_VALUE_MAX], is[ST_CONFIG_VALUE_MAX];
    const char *path;

    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
        for (uint32_t i = 0; (path = st_config_common(&config[0], i, was)) != NULL; i++) {
            if (strcmp(path, keys[k]) != 0 || st_config_common(&config[1], i, is) == NULL || strcmp(was, is) == 0)
                continue;
            const size_t at = find_difference(was, is);

            return st_error_remedy(st_error(STRATA_E_INPUT, "%s was saved by a run with %s %.160s, and this one has %.160s", name,
                                            path, was[at] != '\0' ? was + at : "none", is[at] != '\0' ? is + at : "none"),
                                   path,
                                   "resume with the same, or start a new run without train.resume and with another strata.save");
        }
    return STRATA_OK;
}

static strata_status compare_tensors(const struct st_manifest *was, const struct st_manifest *is, const char *name)
{
    const char *remedy = "resume with the model that the run began with";

    for (uint32_t i = 0; i < was->tensor_count && i < is->tensor_count; i++) {
        const struct st_manifest_tensor *a = &was->tensors[i], *b = &is->tensors[i];

        if (strcmp(a->name, b->name) != 0)
            return st_error(STRATA_E_INPUT, "%s is of another model: it has tensor %s where this one has %s: %s", name, a->name,
                            b->name, remedy);
        if (strcmp(a->layer, b->layer) != 0)
            return st_error(STRATA_E_INPUT, "%s is of another model: tensor %s is of layer %s there, and of %s in this one: %s",
                            name, a->name, a->layer, b->layer, remedy);
        if (strcmp(a->shape, b->shape) != 0)
            return st_error(STRATA_E_INPUT, "%s is of another model: tensor %s has shape %s there, and %s in this one: %s", name,
                            a->name, a->shape, b->shape, remedy);
        if (strcmp(a->group, b->group) != 0)
            return st_error(STRATA_E_INPUT, "%s: tensor %s is in parameter group %s there, and in %s here: resume with the same",
                            name, a->name, a->group, b->group);
        if (a->elems != b->elems)
            return st_error(STRATA_E_INPUT,
                            "%s is of another model: tensor %s has %" PRIu64 " elements there, and %" PRIu64 " in this one: %s",
                            name, a->name, a->elems, b->elems, remedy);
        if (a->page != b->page || a->offset != b->offset)
            return st_error(STRATA_E_INPUT,
                            "%s is of another model: tensor %s is at element %" PRIu64 " of page %u, here at %" PRIu64
                            " of page %u: %s",
                            name, a->name, a->offset, a->page, b->offset, b->page, remedy);
    }
    return st_error(STRATA_E_INPUT, "%s is of another model: it has %u groups of %u tensors' parts, and this one %u of %u: %s",
                    name, was->group_count, was->tensor_count, is->group_count, is->tensor_count, remedy);
}

/* The first difference that explains why the tables of groups and tensors are not the same. */
static strata_status explain_shapes(const struct st_manifest *was, const struct st_manifest *is, const char *name)
{
    struct st_config_source *source[2] = {NULL, NULL};
    struct st_config config[2];
    strata_status st;

    if (strcmp(was->model, is->model) != 0)
        return st_error(STRATA_E_INPUT, "%s is of another model: of %s, and this one is %s: resume with the same", name,
                        was->model, is->model);
    st = load_configs(config, source, was, is, name);
    if (st == STRATA_OK)
        st = compare_shaping(config, name);
    st_config_source_free(source[0]);
    st_config_source_free(source[1]);
    return st == STRATA_OK ? compare_tensors(was, is, name) : st;
}

/* Names of optimizers differ before formats do, and formats before shapes: the first that differs explains the most. */
static strata_status compare_numbers(const struct st_manifest *was, const struct st_manifest *is, const char *name)
{
    if (was->dtype != is->dtype)
        return st_error(STRATA_E_INPUT, "%s was saved by a run in %s, and this one is in %s: resume with the same precision",
                        name, strata_dtype_name(was->dtype), strata_dtype_name(is->dtype));
    if (strcmp(was->optimizer, is->optimizer) != 0)
        return st_error(STRATA_E_INPUT, "%s was saved by a run of %s, and this one is of %s: resume with the same optimizer",
                        name, was->optimizer, is->optimizer);
    if (was->moments != is->moments || was->moment_format != is->moment_format)
        return st_error(STRATA_E_INPUT,
                        "%s was saved by a run with %u moments in %s, this one has %u in %s: resume with the same strata.moments",
                        name, was->moments, st_moment_format_name(was->moment_format), is->moments,
                        st_moment_format_name(is->moment_format));
    return strcmp(was->model_shapes, is->model_shapes) != 0 ? explain_shapes(was, is, name) : STRATA_OK;
}

/* Orders of whole passes, --epochs, and those without shuffling, --no-shuffle. */
static bool ends(uint32_t order)
{
    return order == STRATA_DATA_EPOCHS || order == STRATA_DATA_EPOCHS_IN_ORDER;
}

static bool in_order(uint32_t order)
{
    return order == STRATA_DATA_IN_ORDER || order == STRATA_DATA_CYCLE || order == STRATA_DATA_EPOCHS_IN_ORDER;
}

/* Compare one file; a checkpoint that does not say which tokens were trained passes. */
static strata_status compare_file(const struct st_manifest *was, const struct st_manifest *is, uint32_t i, const char *name)
{
    const struct st_manifest_data *a = &was->data[i], *b = &is->data[i];
    const bool same = a->bytes == b->bytes && strcmp(a->header, b->header) == 0 && strcmp(a->windows, b->windows) == 0;

    if (same && (strcmp(a->marks, b->marks) == 0 || a->marks[0] == '\0' || b->marks[0] == '\0'))
        return STRATA_OK;
    if (same)
        return st_error(
            STRATA_E_INPUT,
            "%s: trained tokens or starts of documents differ from the run of %s: resume with the same template and options",
            b->path, name);
    if (strcmp(was->data_date, is->data_date) != 0 && was->data_date[0] != '\0' && is->data_date[0] != '\0')
        return st_error(
            STRATA_E_INPUT,
            "%s gives other tokens than for %s: its chat template date is %s, here %s: resume with texts.date %s, or without",
            b->path, name, was->data_date, is->data_date, was->data_date);
    if (strcmp(a->path, b->path) == 0)
        return st_error(STRATA_E_INPUT,
                        "%s has changed, or gives other tokens, since %s was saved: resume with the same data, in the same order",
                        b->path, name);
    return st_error(STRATA_E_INPUT, "%s stands where the run of %s read %s: resume with the same data, in the same order",
                    b->path, name, a->path);
}

static strata_status compare_data(const struct st_manifest *was, const struct st_manifest *is, const char *name)
{
    strata_status st = STRATA_OK;

    if (was->data_count == 0 || is->data_count == 0)
        return STRATA_OK;
    if (was->data_count != is->data_count)
        return st_error(STRATA_E_INPUT, "%s was saved by a run over %u token file%s, and this one has %u: resume with the same",
                        name, was->data_count, was->data_count == 1 ? "" : "s", is->data_count);
    for (uint32_t i = 0; i < was->data_count && st == STRATA_OK; i++)
        st = compare_file(was, is, i, name);
    if (st != STRATA_OK)
        return st;
    if (was->data_order != is->data_order) {
        const bool differs = ends(was->data_order) != ends(is->data_order),
                   has = differs ? ends(was->data_order) : in_order(was->data_order);

        if (!differs && in_order(was->data_order) == in_order(is->data_order)) /* of callers: the program has no option for it */
            return st_error(STRATA_E_INPUT, "%s was saved by a run with data_order %u, and this one has %u: resume with the same",
                            name, was->data_order, is->data_order);
        return st_error(STRATA_E_INPUT, "%s was saved by a run %s %s, and this one is %s: the order of sequences would differ",
                        name, has ? "with" : "without", differs ? "config.steps_later" : "train.no_shuffle",
                        has ? "without it" : "with it");
    }
    if (was->data_seq != is->data_seq || was->data_seed != is->data_seed)
        return st_error(STRATA_E_INPUT,
                        "%s was saved by a run with model.seq_len %u and resume.data_seed %" PRIu64
                        ", and this one has %u and %" PRIu64 ": resume with the same",
                        name, was->data_seq, was->data_seed, is->data_seq, is->data_seed);
    return STRATA_OK;
}

/* What no key of a configuration says. */
static void note_place(const struct st_manifest *was, const struct st_manifest *is, const char *name)
{
    const struct {
        const char *what, *was, *is;
    } places[] = {
        {"device", was->device, is->device}, {"instruction set", was->isa, is->isa}, {"matmul library", was->matmul, is->matmul}};

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        if (places[i].was[0] != '\0' && strcmp(places[i].was, places[i].is) != 0) /* "": an import, which has none */
            st_log(ST_LOG_NOTICE, "%s was saved with the %s %s, and this one is %s: bits may differ from an uninterrupted run",
                   name, places[i].what, places[i].was, places[i].is);
    if (strcmp(was->model, is->model) != 0 || strcmp(was->model_source, is->model_source) != 0)
        st_log(ST_LOG_NOTICE,
               "%s is of a run that began with the weights of %s; model.model names %s, whose weights are not read", name,
               was->model_source[0] != '\0' ? was->model_source : was->model,
               is->model_source[0] != '\0' ? is->model_source : is->model);
    if (was->numerics != is->numerics)
        st_log(ST_LOG_NOTICE,
               "%s was saved by strata %s, which summed or rounded otherwise: bits may differ from an uninterrupted run", name,
               was->version);
}

static const struct st_config_row *row_named(const struct st_config_source *source, const char *path)
{
    for (uint32_t i = 0; i < st_config_row_count(source); i++)
        if (strcmp(st_config_row_at(source, i)->path, path) == 0)
            return st_config_row_at(source, i);
    return NULL;
}

/* The number of micro-batches follows from that of ranks, and from sequences of a step, which stay, and of a micro-batch, which
 * have a notice. */
static void note_keys(const struct st_config_source *was, const struct st_config_source *is, const char *name)
{
    for (uint32_t i = 0; i < st_config_row_count(is); i++) {
        const struct st_config_row *now = st_config_row_at(is, i), *then = row_named(was, now->path);

        if (now->changes == ST_CHANGES_RESULTS && then != NULL && strcmp(now->value, then->value) != 0 &&
            strcmp(now->path, "gradient_accumulation_steps") != 0)
            st_log(ST_LOG_NOTICE, "%s is %s from here on; in %s it was %s", now->path, now->value, name, then->value);
    }
}

/* Rates of parameter groups, as the configuration's own; a checkpoint may not say them. */
static void note_rates(const struct st_manifest *was, const struct st_manifest *is, const char *name)
{
    const char *a = was->group_rates, *b = is->group_rates;

    while (*a != '\0' && *b != '\0') {
        const int then = (int)strcspn(a, "\n"), now = (int)strcspn(b, "\n");

        if (then != now || strncmp(a, b, (size_t)now) != 0)
            st_log(ST_LOG_NOTICE, "parameter group %.*s from here on; in %s it was %.*s", now, b, name, then, a);
        a += then + (a[then] != '\0');
        b += now + (b[now] != '\0');
    }
}

/* The number of sequences in a step decides which step sees which; other keys may change. */
static strata_status compare_config(const struct st_manifest *was, const struct st_manifest *is, const char *name, bool *rescales)
{
    struct st_config_source *source[2] = {NULL, NULL};
    struct st_config config[2];
    strata_status st = load_configs(config, source, was, is, name);

    if (st == STRATA_OK && config[0].train_batch != config[1].train_batch)
        st = st_error_remedy(st_error(STRATA_E_INPUT, "%s was saved by a run of %u sequences a step, and this one has %u", name,
                                      config[0].train_batch, config[1].train_batch),
                             "gradient_accumulation_steps",
                             "train_micro_batch_size_per_gpu times gradient_accumulation_steps must be the same; without "
                             "gradient_accumulation_steps, or with \"auto\", it follows");
    if (st == STRATA_OK && config[0].micro_batch != config[1].micro_batch)
        st_log(ST_LOG_NOTICE,
               "sequences are summed otherwise than in %s (%u at a time, %u here): bits may differ from an uninterrupted run",
               name, config[0].micro_batch, config[1].micro_batch);
    if (st == STRATA_OK && was->world != is->world && config[0].wire == ST_WIRE_BF16 && config[1].wire == ST_WIRE_BF16)
        st_log(ST_LOG_NOTICE,
               "gradients are summed over %u rank%s now, in %s over %u, with strata.wire bf16: bits differ from an uninterrupted "
               "run",
               is->world, is->world == 1 ? "" : "s", name, was->world);
    *rescales = st == STRATA_OK && config[0].scaling.initial_power != config[1].scaling.initial_power;
    if (st == STRATA_OK)
        note_keys(source[0], source[1], name);
    st_config_source_free(source[0]);
    st_config_source_free(source[1]);
    return st;
}

strata_status st_resume_compare(const struct st_manifest *m, const char *name, const struct st_run *run,
                                const struct st_run_data *data, bool *rescales)
{
    struct st_manifest is;
    strata_status st = st_run_describe(&is, run, data);

    *rescales = false;
    if (st != STRATA_OK)
        return st;
    st = compare_numbers(m, &is, name);
    if (st == STRATA_OK)
        st = compare_data(m, &is, name);
    if (st == STRATA_OK)
        st = compare_config(m, &is, name, rescales);
    if (st == STRATA_OK) {
        note_rates(m, &is, name);
        note_place(m, &is, name);
    }
    st_manifest_fini(&is);
    return st;
}
