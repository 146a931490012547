/* tests/offload/test_machine_report.c - what strata info says of methods and drives, and which advice follows. */
#include "core/base/fault.h"
#include "nvme/method/direct.h"
#include "offload/machine/machine_report.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* A drive as it should be. */
static struct st_dir_report sound(void)
{
    return (struct st_dir_report){
        .direct_works = true,
        .registers = true,
        .disk = {.name = "nvme0n1", .scheduler = "none", .nr_requests = 1023, .max_sectors_kb = 1280},
    };
}

TEST(kernels_of_wsl_are_known)
{
    assert_int_equal(st_report_wsl("5.15.167.4-microsoft-standard-WSL2"), 2);
    assert_int_equal(st_report_wsl("4.4.0-19041-Microsoft"), 1);
    assert_int_equal(st_report_wsl("6.8.0-31-generic"), 0);
    assert_int_equal(st_report_wsl(""), 0);
}

/* Each flaw has its sentence, at its bound and not beside it; what is unknown has none. */
TEST(each_flaw_has_its_advice)
{
    struct st_dir_report r;
    const struct {
        uint64_t *number, value;
        const char *text; /* "": no advice */
    } rows[] = {
        {&r.disk.nr_requests, 0, ""},
        {&r.disk.nr_requests, 31, "echo 32 > /sys/block/nvme0n1/queue/nr_requests"},
        {&r.disk.nr_requests, 32, ""},
        {&r.disk.max_sectors_kb, 0, ""},
        {&r.disk.max_sectors_kb, 127, "raise /sys/block/nvme0n1/queue/max_sectors_kb: requests of 1024 KiB are cut at 127"},
        {&r.disk.max_sectors_kb, 128, ""},
    };
    static const char *const schedulers[][2] = {{"none", ""},
                                                {"mq-deadline", ""},
                                                {"bfq", "bfq orders requests for rotating disks"},
                                                {"cfq", "cfq orders requests for rotating disks"},
                                                {"", ""}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        r = sound();
        *rows[i].number = rows[i].value;
        st_report_advise(&r);
        assert_non_null(strstr(r.advice, rows[i].text));
        assert_int_equal(r.advice[0] == '\0', rows[i].text[0] == '\0');
    }
    for (size_t i = 0; i < sizeof(schedulers) / sizeof(schedulers[0]); i++) {
        r = sound();
        strcpy(r.disk.scheduler, schedulers[i][0]);
        st_report_advise(&r);
        assert_non_null(strstr(r.advice, schedulers[i][1]));
        assert_int_equal(r.advice[0] == '\0', schedulers[i][1][0] == '\0');
    }
    r = sound();
    snprintf(r.filesystem, sizeof(r.filesystem), "9p");
    st_report_advise(&r);
    assert_non_null(strstr(r.advice, "9p passes every request to another system"));
    r = sound();
    r.disk.rotational = true;
    st_report_advise(&r);
    assert_string_equal(r.advice, "use an SSD (a virtual disk may only seem to rotate)");
    r.direct_works = r.registers = false; /* with others: one behind the other */
    st_report_advise(&r);
    assert_int_equal(strncmp(r.advice, "use a directory on ext4 or xfs: ", 32), 0);
    assert_non_null(strstr(r.advice, "from the run; raise RLIMIT_MEMLOCK"));
    assert_non_null(strstr(r.advice, " now; use an SSD (a virtual disk may only seem to rotate)"));
}

/* The first that can be used, and that one alone; the others say why not. */
TEST(one_method_is_automatic)
{
    static const char *const sites[] = {"none", "nvme.ring", "nvme.eventfd"}; /* the last: of uring and of aio */

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        struct st_method_report methods[8];
        uint32_t count, automatic = 0;
        bool usable = false;

        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -EPERM});
        count = st_report_methods(methods, 8);
        st_fault_disarm();
        assert_int_equal(count, 3);
        for (uint32_t k = 0; k < count; k++) {
            assert_string_not_equal(methods[k].name, "fake");
            assert_int_equal(methods[k].automatic, methods[k].usable && !usable);
            assert_int_equal(methods[k].why[0] == '\0', methods[k].usable);
            usable = usable || methods[k].usable;
            automatic += methods[k].automatic;
        }
        assert_int_equal(automatic, 1);
        assert_true(methods[2].usable && (i < 1 || !methods[0].usable) && (i < 2 || !methods[1].usable));
        assert_int_equal(st_report_methods(methods, 1), 1);
    }
}

/* One that opens with few requests, and not with as many as a run has in flight, can be used; a run takes the next. */
TEST(what_a_run_falls_back_from_is_not_automatic)
{
    struct st_method_report methods[8];

    if (st_report_methods(methods, 8) != 3 || !methods[0].usable || !methods[1].usable)
        skip(); /* a kernel without io_uring or aio */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .count = 1, .result = -ENOMEM});
    assert_int_equal(st_report_methods(methods, 8), 3);
    st_fault_disarm();
    assert_true(methods[0].usable && !methods[0].automatic && methods[0].why[0] == '\0');
    assert_true(methods[1].automatic && !methods[2].automatic);
}

/* A directory that takes files has no problem, also where the file system knows no files without a name; any other has one. */
TEST(a_directory_is_writable_or_says_why_not)
{
    static const struct {
        const char *site, *dir, *problem; /* dir NULL: one that is there; problem NULL: none */
        int error;
    } rows[] = {{"none", NULL, NULL, EIO},
                {"report.open", NULL, NULL, EOPNOTSUPP},
                {"report.open", NULL, "cannot create files in ", EROFS},
                {"report.open", NULL, "cannot create files in ", EACCES},
                {"none", "/no/such/directory", "/no/such/directory", EIO}};

    scratch_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_dir_report r;

        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .result = -rows[i].error});
        st_report_dir(&r, rows[i].dir != NULL ? rows[i].dir : scratch_dir);
        st_fault_disarm();
        assert_int_equal(r.writable, rows[i].problem == NULL);
        if (rows[i].problem == NULL)
            assert_string_equal(r.problem, "");
        else
            assert_non_null(strstr(r.problem, rows[i].problem));
    }
    scratch_close();
}

/* By its name, or by the number that statfs() has for it; one that does not say is unknown. */
TEST(a_file_system_is_named)
{
    static const struct {
        const char *dir;
        unsigned long magic;
        const char *name;
    } rows[] = {{"/proc", 0x9fa0, "0x9fa0"}, {"/sys", 0x62656572, "0x62656572"}, {"/dev/shm", 0x01021994, "tmpfs"},
                {"/", 0xef53, "ext4"},       {"/", 0x58465342, "xfs"},           {"/", 0x9123683e, "btrfs"},
                {"/", 0x794c7630, "overlay"}};
    struct st_dir_report r;
    struct statfs fs;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (statfs(rows[i].dir, &fs) != 0 || (unsigned long)fs.f_type != rows[i].magic)
            continue; /* not here */
        st_report_dir(&r, rows[i].dir);
        assert_string_equal(r.filesystem, rows[i].name);
    }
    st_report_dir(&r, ".");
    assert_string_not_equal(r.filesystem, "unknown");
    st_fault_arm(&(struct st_fault_spec){.site = "report.statfs", .result = -EIO});
    st_report_dir(&r, ".");
    st_fault_disarm();
    assert_string_equal(r.filesystem, "unknown");
}

/* What is said of direct I/O is what a file there tells. */
TEST(direct_io_is_as_a_file_tells)
{
    struct st_dir_report r;
    struct st_direct direct;
    int fd;

    scratch_open();
    scratch_put("a", "text");
    fd = open(scratch_path("a"), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    st_direct_enable(&direct, fd);
    st_report_dir(&r, scratch_dir);
    assert_int_equal(r.direct_works, direct.works);
    assert_int_equal(r.memory_align, direct.told ? direct.memory_align : 0);
    assert_int_equal(r.offset_align, direct.told ? direct.offset_align : 0);
    close(fd);
    scratch_close();
}
