/* tests/cli/test_fault_walk.c - every fault site of whole runs fails once: a sentence and an exit code, or the right result;
 * never a crash, a wait without end, another number with exit code 0, or something left on disk.
 *
 *     test_cli_fault_walk [PASSES [COMMAND]...]
 *
 * Of each site so many passes fail, from the first to the last; 0: every one.  Default: one, the first or the last, or a few; and
 * of the command lines that pass a site, one: of the sites they take turns.
 * Commands by their first word; without: all. */
#include "tests/cli/program.h"
#include "tests/cli/sites.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/offload/checkpoint_fixture.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_SECONDS 120
#define COUNT(a)     (sizeof(a) / sizeof((a)[0]))
#define PAGED                                                                                                                    \
    " --device-memory 2MiB --host-memory 64MiB --nvme {w}/nvme --set zero_optimization.stage=3 --set "                           \
    "zero_optimization.offload_param.device=nvme --set strata.cache=0"

#define SAVING                                                                                                                   \
    "train --model nano --set strata.watchdog=false --data {w}/good.bin --seq-len 64 --max-steps 3 --machine {w}/machine.json "  \
    "--digest --quiet --nvme {w}/nvme --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 "

static unsigned long passes_asked = ULONG_MAX;
static char **commands_asked; /* NULL: all; ended by NULL */

/* Standard output of a command whose figures change with the machine is not compared.  The watchdog looks each second, so that
 * the sites that it passes are chance: tests/core/test_watchdog.c walks them. */
static const struct {
    const char *command;
    bool compared;
    unsigned long passes;
    bool last; /* where one pass fails, it is the last */
} commands[] = {
    {"train --model nano --set strata.watchdog=false --data {w}/good.bin --eval-data {w}/good.heldout.bin --seq-len 64 "
     "--max-steps 2 --machine "
     "{w}/machine.json "
     "--out {w}/out --metrics {w}/m.jsonl --trace {w}/t.json --digest --quiet --nvme {w}/nvme --set "
     "zero_optimization.offload_optimizer.device=nvme --set strata.cache=0",
     true, 1, false},
    {"train --model {w}/model --set strata.watchdog=false --data {w}/good.bin --seq-len 64 --max-steps 2 --machine "
     "{w}/machine.json --out {w}/out --digest "
     "--quiet --set strata.io_method=threads --device-memory 16MiB --host-memory 64MiB --nvme {w}/nvme --set "
     "zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme --set "
     "zero_optimization.offload_optimizer.device=nvme --set strata.cache=0",
     true, 1, true},
    {SAVING "--save {w}/saved --save-every 1 --keep 1 --set csv_monitor.enabled=true --set tensorboard.enabled=true --set "
            "csv_monitor.output_path={w}/log --set tensorboard.output_path={w}/log",
     true, 1, false},
    {"import {w}/parts --model {w}/model --config {w}/config.json --out {w}/saved --quiet", true, 1, false},
    {SAVING "--save {w}/saved --resume {w}/from/step-00000001", true, 1, true},
    {"eval --model {w}/model --data {w}/good.heldout.bin --seq-len 64" PAGED, true, 1, true},
    {"eval --model tests/golden/chat/llama --data {w}/text.txt --seq-len 32", true, 1, false},
    {"generate --model {w}/model --prompt 'in the beg' --max-tokens 4 --temperature 0 --quiet" PAGED, true, 1, false},
    {"generate --model tests/golden/chat/llama --prompt 'In the beginning' --max-tokens 4 --quiet", true, 1, true},
    {"generate --model tests/golden/chat/qwen --chat --system s --prompt x --max-tokens 4 --quiet", true, 1, false},
    {"tokens {w}/text --out {w}/new.bin", true, 1, false},
    {"tokens {w}/talks.jsonl --dataset-info {w}/sets.json --dataset talks --tokenizer tests/golden/chat/qwen --template "
     "{w}/t.jinja "
     "--val-size 1 --max-samples 5 --show 1 --seq-len 40 --out {w}/new.bin",
     true, 1, false},
    {"train --model tests/golden/chat/qwen --set strata.watchdog=false --data {w}/talks.jsonl --seq-len 40 --max-steps 2 "
     "--machine {w}/machine.json --out "
     "{w}/out --digest --quiet",
     true, 1, true},
    {"digest {w}/model", true, 1, false},
    {"digest {w}/save", true, 1, false},
    {"verify {w}/save/step-00000001", true, 1, false},
    {"export {w}/run --out {w}/out --quiet", true, 1, false},
    {"eval --model {w}/run --data {w}/good.heldout.bin --seq-len 64", true, 1, false},
    {"train --model tests/golden/families/llama_linear --set strata.watchdog=false --data "
     "tests/golden/families/llama_linear/tokens.bin --seq-len 32 --max-steps 2 --machine {w}/machine.json --adapter "
     "tests/golden/adapters/llama_linear --save {w}/saved --out {w}/out --digest --quiet",
     true, 1, false},
    {"export --merge --model tests/golden/families/gpt2_exact --adapter tests/golden/adapters/gpt2_exact --out {w}/out --quiet",
     true, 1, false},
    {"check {w}/config.json", true, 1, false},
    {"plan --model nano --micro-batch 1 --threads 2 --machine {w}/machine.json --host-memory 1GiB --device-memory 1GiB --json",
     true, 3, false},
    {"info --json --nvme {w}/nvme", false, 1, false},
};

struct walk {
    const struct workplace *w;
    const char *command; /* NULL: not asked for */
    bool compared, last;
    unsigned long passes;
    char *out;          /* of the run without a fault */
    char *model_digest; /* of its --out, or "" */
    struct site sites[SITES_MAX];
    unsigned long site_count, runs, refused, absorbed, unreached, wrong;
};

static struct walk walks[COUNT(commands)];
static char running[512];

static void waits_too_long(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, running, strlen(running));
    (void)!write(STDERR_FILENO, ": no end\n", 9);
    _exit(1);
}

static void run(const struct walk *walk, struct program *p, const char *fault)
{
    char command[2048];

    assert_true(snprintf(command, sizeof(command), "%s --fault %s", walk->command, fault) < (int)sizeof(command));
    snprintf(running, sizeof(running), "%.400s --fault %s", walk->command, fault);
    alarm(WAIT_SECONDS);
    workplace_run(walk->w, p, command);
    alarm(0);
}

/* What `strata digest` says of --out; "" if it is not there.  Owned by the caller. */
static char *digest_of_out(const struct workplace *w)
{
    struct program p;
    char *text;

    if (!workplace_exists(w, "out/model.safetensors")) /* weights that are kept without their name are no model */
        return strdup("");
    workplace_run(w, &p, "digest {w}/out");
    text = strdup(p.code == 0 ? p.out : "damaged");
    program_free(&p);
    return text;
}

static void forget_results(const struct workplace *w)
{
    static const char *const results[] = {"saved",  "log",     "out",          "out.tokens",      "m.jsonl",
                                          "t.json", "new.bin", "new.bin.meta", "new.heldout.bin", "new.heldout.bin.meta"};

    for (size_t i = 0; i < COUNT(results); i++)
        if (workplace_exists(w, results[i]))
            workplace_remove(w, results[i]);
}

static bool find_part(const char *path, const char *part, char name[64])
{
    DIR *dir = opendir(path);
    bool found = false;

    for (const struct dirent *entry = dir != NULL ? readdir(dir) : NULL; entry != NULL; entry = readdir(dir))
        if (strstr(entry->d_name, part) != NULL) {
            snprintf(name, 64, "%.60s", entry->d_name);
            found = true;
        }
    if (dir != NULL)
        closedir(dir);
    return found;
}

/* Names that are not complete results; the name of one, or NULL. */
static const char *left_over(const struct workplace *w)
{
    static char name[64];
    char save[128];

    snprintf(save, sizeof(save), "%s/saved", w->path);
    return find_part(w->path, ".tmp", name) || find_part(save, ".strata", name) ? name
           : workplace_entries(w, "nvme") != 0                                  ? "nvme"
           : workplace_entries(w, "tmp") != 0                                   ? "tmp"
                                                                                : NULL;
}

/* A removal that fails leaves what it was to remove, with a warning; of swap files the next run's sweep takes it. */
static bool may_leave(const char *fault)
{
    static const char *const removals[] = {"nvme.unlink", "owned.unlink", "nvme.users", "temp.open"};

    for (size_t i = 0; i < COUNT(removals); i++)
        if (strncmp(fault, removals[i], strlen(removals[i])) == 0)
            return true;
    return false;
}

/* One line, and the walk goes on. */
static void wrong(struct walk *walk, const char *what, const char *more)
{
    fprintf(stderr, "%s\n  %s: %s\n", running, what, more);
    walk->wrong++;
}

static void sweep(const struct walk *walk)
{
    struct program p;

    workplace_run_ok(walk->w, &p, "eval --model {w}/model --data {w}/good.heldout.bin --seq-len 64" PAGED);
    program_free(&p);
    assert_int_equal(workplace_entries(walk->w, "nvme"), 0);
    workplace_remove(walk->w, "tmp");
    workplace_make_dir(walk->w, "tmp");
}

static void check_run(struct walk *walk, const struct program *p, const char *fault)
{
    const bool fired = strstr(p->err, "fault: ") != NULL;
    const char *left = left_over(walk->w);
    char *digest = digest_of_out(walk->w);

    walk->runs++;
    walk->refused += p->code != 0;
    walk->absorbed += p->code == 0 && fired;
    walk->unreached += !fired;
    if (p->code < 0 || p->code > 5)
        wrong(walk, "did not end by itself", p->err);
    else if (p->code != 0 && strstr(p->err, "strata: error: ") == NULL)
        wrong(walk, "no sentence", p->err);
    if (left != NULL && !may_leave(fault) && strstr(p->err, "cannot be removed") == NULL)
        wrong(walk, "something is left", left);
    if (left != NULL)
        sweep(walk);
    if (p->code == 0 && walk->compared && strcmp(p->out, walk->out) != 0)
        wrong(walk, "exit code 0 and another result", p->out);
    if ((p->code == 0 || digest[0] != '\0') && strcmp(digest, walk->model_digest) != 0)
        wrong(walk, "another model", digest);
    free(digest);
}

static void fail_at(struct walk *walk, const char *site, unsigned long pass)
{
    char fault[128];
    struct program p;

    snprintf(fault, sizeof(fault), "%.63s:%lu:1", site, pass);
    run(walk, &p, fault);
    check_run(walk, &p, fault);
    program_free(&p);
    forget_results(walk->w);
}

static void run_without_fault(struct walk *walk)
{
    struct program p;

    run(walk, &p, "?");
    if (p.code != 0)
        fail_msg("%s: exit code %d: %s", running, p.code, p.err);
    walk->out = strdup(p.out);
    walk->model_digest = digest_of_out(walk->w);
    walk->site_count = sites_read(walk->sites, p.err);
    program_free(&p);
    forget_results(walk->w);
}

static bool passes_site(const struct walk *walk, const char *name)
{
    for (unsigned long i = 0; i < walk->site_count; i++)
        if (strcmp(walk->sites[i].name, name) == 0)
            return true;
    return false;
}

/* Whether it is this one's turn among those that pass the site. */
static bool has_turn(const struct walk *walk, const struct site *site)
{
    unsigned long before = 0, all = 0, turn = 0;

    for (const char *c = site->name; *c != '\0'; c++)
        turn = turn * 31 + (unsigned char)*c;
    for (size_t i = 0; i < COUNT(walks); i++)
        if (walks[i].command != NULL && passes_site(&walks[i], site->name)) {
            before += &walks[i] < walk;
            all++;
        }
    return turn % all == before;
}

static void walk_sites(struct walk *walk)
{
    for (unsigned long i = 0; i < walk->site_count; i++) {
        const struct site *site = &walk->sites[i];
        const unsigned long all = site->passed, wanted = walk->passes == 0 || walk->passes > all ? all : walk->passes;

        for (unsigned long k = 0; k < wanted && (passes_asked != ULONG_MAX || has_turn(walk, site)); k++)
            fail_at(walk, site->name, wanted > 1 ? sites_pass(site, k, wanted) : walk->last ? all - 1 : 0);
    }
    print_message("%.20s...: %lu sites, %lu runs: %lu refused, %lu absorbed, %lu without the fault, %lu wrong\n", walk->command,
                  walk->site_count, walk->runs, walk->refused, walk->absorbed, walk->unreached, walk->wrong);
}

static bool is_asked(const char *command)
{
    bool asked = commands_asked == NULL;

    for (char **at = commands_asked; !asked && *at != NULL; at++)
        asked = strncmp(command, *at, strlen(*at)) == 0 && command[strlen(*at)] == ' ';
    return asked;
}

/* For an import: the model's weights after a step that has moved nothing. */
static void make_parts(const struct workplace *w)
{
    static const char state[] = "{\"format\": 1, \"steps\": 1, \"skipped_steps\": 0, \"samples\": 1, \"loss_scaler\": null}";
    static const char *const moments[] = {"parts/exp_avg", "parts/exp_avg_sq"};
    size_t bytes, header;
    char *weights = workplace_read(w, "model/model.safetensors", &bytes), name[64];

    workplace_make_dir(w, "parts");
    workplace_make_dir(w, "parts/fp32");
    workplace_write(w, "parts/fp32/model.safetensors", weights, bytes);
    memcpy(&header, weights, sizeof(header));
    memset(weights + 8 + header, 0, bytes - 8 - header);
    for (size_t i = 0; i < COUNT(moments); i++) {
        workplace_make_dir(w, moments[i]);
        snprintf(name, sizeof(name), "%s/model.safetensors", moments[i]);
        workplace_write(w, name, weights, bytes);
    }
    workplace_write(w, "parts/state.json", state, sizeof(state) - 1);
    free(weights);
}

TEST(every_site_fails_cleanly)
{
    static const char text[] =
        "In the beginning the text was longer than a sequence, and the tokens of it were many, so that there was "
        "something to compute; and what was computed was a loss, which a fault must not change.";

    static const char config[] = "{\"train_batch_size\": 1, \"fp16\": {\"enabled\": false}}";
    static const char talks[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"how much is it?\"}, {\"role\": \"assistant\", \"content\": \"two "
        "and "
        "more\"}], \"tools\": [{\"name\": \"f\", \"limit\": 1.0}]}\n"
        "{\"messages\": []}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"one text that is "
        "longer "
        "than the sequences of this run, which cut it before its last words\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"e\"}, {\"role\": \"assistant\", \"content\": \"f\"}]}\n";
    static const char sets[] =
        "{\"talks\": {\"file_name\": \"talks.jsonl\", \"formatting\": \"sharegpt\", \"num_samples\": 4, \"columns\": "
        "{\"messages\": "
        "\"messages\"}, \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", \"user_tag\": \"user\", "
        "\"assistant_tag\": \"assistant\"}}}";
    static const char jinja[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    unsigned long runs = 0, sites = 0, wrong_runs = 0;
    char tmp[160];

    workplace_write(*state, "talks.jsonl", talks, sizeof(talks) - 1);
    workplace_write(*state, "sets.json", sets, sizeof(sets) - 1);
    workplace_write(*state, "t.jinja", jinja, sizeof(jinja) - 1);
    workplace_make_dir(*state, "tmp");
    snprintf(tmp, sizeof(tmp), "%.140s/tmp", ((const struct workplace *)*state)->path);
    setenv("TMPDIR", tmp, 1);
    workplace_write(*state, "config.json", config, strlen(config));
    workplace_write(*state, "text.txt", text, sizeof(text) - 1);
    make_parts(*state);
    for (size_t i = 0; i < COUNT(commands); i++) {
        if (!is_asked(commands[i].command))
            continue;
        walks[i] = (struct walk){.w = *state,
                                 .command = commands[i].command,
                                 .compared = commands[i].compared,
                                 .last = commands[i].last,
                                 .passes = passes_asked == ULONG_MAX ? commands[i].passes : passes_asked};
        run_without_fault(&walks[i]);
    }
    for (size_t i = 0; i < COUNT(walks); i++) {
        if (walks[i].command == NULL)
            continue;
        walk_sites(&walks[i]);
        sites += walks[i].site_count;
        runs += walks[i].runs;
        wrong_runs += walks[i].wrong;
        free(walks[i].out);
        free(walks[i].model_digest);
    }
    print_message("in all: %lu sites, %lu runs, %lu wrong\n", sites, runs, wrong_runs);
    assert_int_equal(wrong_runs, 0);
}

/* With a checkpoint, and some of a run. */
static int setup(void **state)
{
    struct program p;
    char *save;

    if (workplace_setup(state) != 0)
        return -1;
    workplace_make_dir(*state, "save");
    save = workplace_expand(*state, "{w}/save");
    fixture_checkpoint(save, 1);
    free(save);
    workplace_run_ok(*state, &p, "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --quiet --save {w}/run");
    program_free(&p);
    workplace_run_ok(*state, &p, SAVING "--save {w}/from --save-every 1 --keep 3");
    program_free(&p);
    return 0;
}

TEST_MAIN(argc, argv)
{
    if (argc > 1)
        passes_asked = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        commands_asked = argv + 2;
    signal(SIGALRM, waits_too_long);
    return test_run(setup, workplace_teardown);
}
