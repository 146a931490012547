/* tests/cli/test_verify.c - strata verify and strata digest on checkpoints: exit codes, what is named, what is offered. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/offload/checkpoint_fixture.h"

#include "offload/checkpoint/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWAP_MARK "strata swap lock 1\n"

/* {w}/save with two checkpoints; each test has its own. */
static int setup(void **state)
{
    char *save;

    if (workplace_setup(state) != 0)
        return -1;
    workplace_make_dir(*state, "save");
    save = workplace_expand(*state, "{w}/save");
    for (uint64_t step = 1; step <= 2; step++)
        fixture_checkpoint(save, step);
    free(save);
    return 0;
}

static void flip(const struct workplace *w, const char *name, long at)
{
    char *path = workplace_expand(w, name);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
    free(path);
}

/* Fails where the exit code is another, or one of the texts is missing. */
static void says(const struct workplace *w, const char *command, int code, const char *out, const char *err)
{
    struct program p;

    workplace_run(w, &p, command);
    if (p.code != code || strstr(p.out, out) == NULL || strstr(p.err, err) == NULL || strstr(p.err, "(null)") != NULL)
        fail_msg("strata %s\nexit code %d, wanted %d, \"%s\" and \"%s\":\n%s\n%s", command, p.code, code, out, err, p.out, p.err);
    program_free(&p);
}

TEST_SETUP(whole_ones_are_whole, setup, workplace_teardown)
{
    says(*state, "verify {w}/save", 0, "save/step-00000002: step 2 of run 0123456789abcdef, model nano", "");
    says(*state, "verify {w}/save/step-00000001 --quiet", 0, "every checksum is right\n", "");
    says(*state, "verify {w}/save/step-00000001 --json", 0, "\"damages\":[],\"ok\":true}", "");
    says(*state, "verify {w}/nothing", 2, "", "nothing");
    says(*state, "verify {w}/nvme", 2, "", "nvme: has no checkpoint");
    says(*state, "verify", 2, "", "missing argument: DIR");
}

TEST_SETUP(damage_is_named_and_an_older_one_offered, setup, workplace_teardown)
{
    flip(*state, "{w}/save/step-00000002/set.0", 3);
    says(*state, "verify {w}/save", 4,
         "save/step-00000002/set.0, from byte 0 on: master of wte.weight (page 0, group 0, elements 0 to 16383): its checksum is "
         "wrong\n",
         "save/step-00000001, which is older, opens: strata verify");
    says(*state, "verify {w}/save --json", 4, "\"plane\":\"master\",\"tensor\":\"wte.weight\"", "1 of its");
    says(*state, "verify {w}/save/step-00000001", 0, "every checksum is right\n", "");
    flip(*state, "{w}/save/step-00000001/base.0", 0);
    says(*state, "verify {w}/save/step-00000001", 4, "weight of ln_f.weight", "there is no older one that opens");
}

/* The digests that are printed are another checkpoint's than that of the most steps. */
TEST_SETUP(a_digest_of_an_older_one_is_said, setup, workplace_teardown)
{
    flip(*state, "{w}/save/step-00000002/manifest.json", 9);
    says(*state, "digest {w}/save", 0, "save/step-00000001, weights", "notice: ");
    says(*state, "digest {w}/save --json", 0, "save/step-00000001\"",
         "save/step-00000002 does not open, and an older one is read: ");
    says(*state, "digest {w}/save/step-00000002", 4, "", "step-00000002/manifest.json: its checksum is wrong");
    says(*state, "digest {w}/save/step-00000001", 0, "save/step-00000001, state", "");
}

static uint32_t count_of(const char *text, const char *part)
{
    uint32_t count = 0;

    for (; (text = strstr(text, part)) != NULL; text++)
        count++;
    return count;
}

/* Twenty are shown, and the rest counted; as JSON all are listed.  They do not hide that a small file of the model is damaged,
 * too. */
TEST_SETUP(many_damages_are_counted, setup, workplace_teardown)
{
    struct program text, json;
    uint32_t all;
    char more[32];
    size_t bytes;
    char *set;

    workplace_run_ok(
        *state, &text,
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine {w}/machine.json --quiet --save "
        "{w}/many");
    program_free(&text);
    set = workplace_read(*state, "many/step-00000001/set.0", &bytes);
    for (size_t at = 100; at < bytes; at += 4096)
        set[at] ^= 1;
    workplace_write(*state, "many/step-00000001/set.0", set, bytes);
    free(set);
    workplace_write(*state, "many/step-00000001/model/config.json", "{}", 2);
    workplace_run(*state, &text, "verify {w}/many");
    workplace_run(*state, &json, "verify {w}/many --json");
    assert_true(text.code == 4 && json.code == 4);
    all = count_of(json.out, "\"plane\":");
    assert_non_null(strstr(text.err, "tiles are damaged; and "));
    assert_non_null(strstr(text.err, "model: the model's small files are not those that were saved"));
    assert_true(all > 20);
    assert_int_equal(count_of(text.out, ": its checksum is wrong\n"), 20);
    snprintf(more, sizeof(more), "\nand %u more\n", all - 20);
    assert_non_null(strstr(text.out, more));
    program_free(&text);
    program_free(&json);
}

TEST_SETUP(what_does_not_open_is_said, setup, workplace_teardown)
{
    flip(*state, "{w}/save/step-00000002/manifest.json", 20);
    says(*state, "verify {w}/save", 4, "step-00000002 does not open",
         "step-00000001 is whole, but 1 that is newer does not open");
    says(*state, "verify {w}/save/step-00000002", 4, "", "step-00000001, which is older, opens");
    says(*state, "verify {w}/save/step-00000002/", 4, "", "step-00000001, which is older, opens");
    says(*state, "verify {w}/save --json", 4, "\"skipped\":[{\"path\":", "");
    flip(*state, "{w}/save/step-00000001/extents.bin", 70);
    says(*state, "verify {w}/save", 4, "step-00000001 does not open", "none of its checkpoints opens");
}

/* The first n hex digits after a name in the output. */
TEST_SETUP(digests_are_printed, setup, workplace_teardown)
{
    struct program text, json;

    workplace_run_ok(*state, &text, "digest {w}/save");
    assert_non_null(strstr(text.out, "save/step-00000002, weights\n"));
    assert_non_null(strstr(text.out, "save/step-00000002, state\n"));
    workplace_run_ok(*state, &json, "digest {w}/save/step-00000001 --json");
    assert_non_null(strstr(json.out, "\"step\":1}"));
    text.out[32] = '\0';
    assert_non_null(strstr(json.out, text.out)); /* both have the same planes */
    program_free(&text);
    program_free(&json);
    flip(*state, "{w}/save/step-00000001/set.1", 3);
    says(*state, "digest {w}/save/step-00000001", 4, "", "its checksum is wrong");
}

/* The digest behind a word in what was printed. */
static void digest_after(char hex[33], const char *text, const char *word)
{
    const char *at = strstr(text, word);

    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(word), " %32[0-9a-f]", hex), 1);
}

/* Whatever is trained, wherever it lies. */
TEST_SETUP(digests_are_those_that_the_run_printed, setup, workplace_teardown)
{
    static const char *const runs[] = {
        "",
        "--set zero_optimization.offload_optimizer.device=nvme --nvme {w}/nvme --set strata.cache=0 --set strata.moments=8bit "
        "--set strata.chunk_size=16384 --set strata.freeze=[\"*mlp*\"]",
        "--set zero_optimization.offload_optimizer.device=nvme --nvme {w}/nvme --set strata.cache=0 --set fp16.enabled=true",
    };

    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        char command[1024], weights[33], planes[33], want[33];
        struct program run, digest;

        snprintf(command, sizeof(command),
                 "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --machine {w}/machine.json --quiet --digest "
                 "--save {w}/run-%zu %s",
                 i, runs[i]);
        workplace_run_ok(*state, &run, command);
        snprintf(command, sizeof(command), "digest {w}/run-%zu", i);
        workplace_run_ok(*state, &digest, command);
        memcpy(weights, digest.out, 32);
        memcpy(planes, strstr(digest.out, "weights\n") + strlen("weights\n"), 32);
        weights[32] = planes[32] = '\0';
        digest_after(want, run.out, "weights_digest");
        assert_string_equal(weights, want);
        digest_after(want, run.out, "state_digest");
        assert_string_equal(planes, want);
        program_free(&run);
        program_free(&digest);
        snprintf(command, sizeof(command), "verify {w}/run-%zu", i);
        says(*state, command, 0, "every checksum is right\n", "");
    }
}

TEST_SETUP(leftovers_are_listed_and_swept, setup, workplace_teardown)
{
    char *path = workplace_expand(*state, "{w}/save");
    struct st_store *s;
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(st_store_open(&s, path) == STRATA_OK && st_store_begin(s, 3) == STRATA_OK ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    says(*state, "verify {w}/save --pool", 0, "left by a run that died: --sweep removes it\n", "");
    says(*state, "verify {w}/save --pool --json", 0, "\"live\":false}],\"removed\":0,\"ok\":true}", "");
    assert_int_equal(st_store_open(&s, path), STRATA_OK); /* sweeps; and is alive */
    says(*state, "verify {w}/save --pool", 0, "of a run that is alive\n", "");
    says(*state, "verify {w}/save --sweep", 0, "removed what 0 dead runs left\n", "");
    st_store_close(s);
    says(*state, "verify {w}/save --sweep --json", 0, "{\"pool\":[],\"removed\":0,\"ok\":true}", "");
    says(*state, "verify {w}/nothing --pool", 2, "", "nothing");
    assert_int_equal(workplace_entries(*state, "save"), 2);
    workplace_make_dir(*state, "nvme/strata-0123456789abcdef");
    workplace_write(*state, "nvme/strata-0123456789abcdef/lock", SWAP_MARK, strlen(SWAP_MARK)); /* whose owner died */
    says(*state, "verify {w}/nvme --pool", 0, "nvme/strata-0123456789abcdef: left by a run that died", "");
    says(*state, "verify {w}/nvme --sweep --fault owned.unlink:0:0:-13", 4, "left by a run that died: it stays\n",
         "what 1 dead run left could not be removed");
    says(*state, "verify {w}/nvme --sweep", 0, "removed what 1 dead run left\n", "");
    assert_int_equal(workplace_entries(*state, "nvme"), 0);
    free(path);
}
