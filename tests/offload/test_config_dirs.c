/* tests/offload/test_config_dirs.c - which directories a configuration names, and how often. */
#include "tests/offload/config_fixture.h"

#include <stdio.h>
#include <unistd.h>

static void check_section_dirs(const char *optim, const char *param, const char *own)
{
    const bool nvme[] = {strcmp(optim, "nvme") == 0, strcmp(param, "nvme") == 0};
    static const char *const paths[] = {"zero_optimization.offload_optimizer.nvme_path",
                                        "zero_optimization.offload_param.nvme_path"},
                             *const dirs[] = {"/optim", "/param"};
    struct st_config_source *source;
    struct st_config c;
    uint32_t used = 0;
    char text[256];

    snprintf(text, sizeof(text),
             "{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"/optim\"}, "
             "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"/param\"}}}",
             optim, param);
    if (config_load(&c, &source, text, own) != STRATA_OK)
        fail_msg("%s: %s", text, strata_last_error());
    for (int i = 0; i < 2; i++) {
        const char *reason = find_row(source, paths[i])->reason, *want = !nvme[i]      ? "device is not nvme"
                                                                         : own != NULL ? "strata.nvme takes precedence"
                                                                                       : NULL;

        if ((reason == NULL) != (want == NULL) || (want != NULL && strstr(reason, want) == NULL))
            fail_msg("%s: %s says \"%s\"", text, paths[i], reason != NULL ? reason : "nothing");
        if (want == NULL)
            assert_string_equal(c.nvme_dirs[used++], dirs[i]);
    }
    if (own != NULL)
        assert_string_equal(c.nvme_dirs[used++], "/own");
    assert_int_equal(c.nvme_dir_count, used);
    st_config_source_free(source);
}

/* Each section's directories are for what that section keeps: where the other one keeps its own does not matter. */
TEST(a_sections_directories_follow_its_own_device)
{
    static const char *const devices[] = {"none", "cpu", "nvme"};

    for (int i = 0; i < 9; i++) {
        check_section_dirs(devices[i / 3], devices[i % 3], NULL);
        check_section_dirs(devices[i / 3], devices[i % 3], "strata.nvme=/own");
    }
}

/* Two names of a directory that is there, by a link or another spelling, would count as two drives. */
TEST(one_directory_counts_once)
{
    char dir[] = "/tmp/strata-dirs-XXXXXX", path[64], override[128];
    struct st_config c = load_good("{}", "strata.nvme=[\"/\",\"/.\",\"//\"]");

    assert_int_equal(c.nvme_dir_count, 1);
    assert_string_equal(c.nvme_dirs[0], "/");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/root", dir);
    assert_int_equal(symlink("/", path), 0);
    snprintf(override, sizeof(override), "strata.nvme=%s,/,%s", dir, path);
    c = load_good("{}", override);
    unlink(path);
    rmdir(dir);
    assert_int_equal(c.nvme_dir_count, 2);
    assert_string_equal(c.nvme_dirs[1], "/");
    c = load_good("{}", "strata.nvme=/not/there,/not/here"); /* nobody says that they are one */
    assert_int_equal(c.nvme_dir_count, 2);
}
