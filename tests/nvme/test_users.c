/* tests/nvme/test_users.c - holders of a directory are counted over processes, also over one that is killed; nothing stays. */
#include "core/base/fault.h"
#include "nvme/mover/users.h"
#include "tests/common/child.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int scratch_fd;

static void file_path(char path[128])
{
    snprintf(path, 128, "%s/" ST_USERS_FILE_NAME, scratch_dir);
}

static bool file_is_there(void)
{
    char path[128];

    file_path(path);
    return access(path, F_OK) == 0;
}

static bool locks_work(void)
{
    struct st_users users;

    st_users_join_at(&users, scratch_fd);
    if (users.fd < 0)
        return false;
    st_users_leave(&users);
    return true;
}

/* A process that joins and waits; leaves by itself when told so through the pipe. */
struct member {
    pid_t pid;
    int gate; /* write end: a byte lets the process leave */
};

static struct member member_start(void)
{
    int ready[2], gate[2];
    struct member m;
    char byte;

    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    m.pid = child_fork();
    if (m.pid == 0) {
        struct st_users users;

        st_users_join_at(&users, scratch_fd);
        if (write(ready[1], users.fd >= 0 ? "x" : "-", 1) != 1 || read(gate[0], &byte, 1) != 1)
            _exit(1);
        st_users_leave(&users);
        _exit(0);
    }
    close(ready[1]);
    close(gate[0]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');
    close(ready[0]);
    m.gate = gate[1];
    return m;
}

static void member_end(struct member m, bool killed)
{
    if (killed)
        assert_int_equal(kill(m.pid, SIGKILL), 0);
    else
        assert_int_equal(write(m.gate, "x", 1), 1);
    close(m.gate);
    assert_int_equal(child_wait(m.pid), killed ? 128 + SIGKILL : 0);
}

TEST(processes_are_counted_and_a_killed_one_is_not)
{
    struct st_users users;
    struct member a, b, c;

    a = member_start();
    b = member_start();
    st_users_join_at(&users, scratch_fd);
    assert_int_equal(st_users_holders(&users), 3);
    c = member_start();
    assert_int_equal(st_users_holders(&users), 4);
    member_end(b, true);
    assert_int_equal(st_users_holders(&users), 3);
    member_end(a, false);
    assert_int_equal(st_users_holders(&users), 2);
    assert_true(file_is_there());
    st_users_leave(&users);
    assert_true(file_is_there());
    member_end(c, false); /* the last one out */
    assert_false(file_is_there());
}

TEST(what_a_killed_one_leaves_is_swept)
{
    struct member dead, alive;

    dead = member_start();
    alive = member_start();
    st_users_sweep_at(scratch_fd);
    assert_true(file_is_there());
    member_end(alive, true);
    member_end(dead, true);
    assert_true(file_is_there());
    st_users_sweep_at(scratch_fd);
    assert_false(file_is_there());
    st_users_sweep_at(scratch_fd); /* nothing there */
}

/* Two swaps of one process are two holders; a dying process leaves with both. */
TEST(a_dying_process_leaves_nothing)
{
    struct st_users a, b;

    st_users_join_at(&a, scratch_fd);
    st_users_join_at(&b, scratch_fd);
    assert_int_equal(st_users_holders(&a), 2);
    assert_int_equal(st_users_holders(&b), 2);
    assert_false(st_users_unlink(&a));
    assert_int_equal(st_users_holders(&b), 1);
    assert_true(st_users_unlink(&b));
    assert_false(file_is_there());
    st_users_leave(&a);
    st_users_leave(&b);
}

TEST(more_than_the_slots_are_left_out)
{
    struct st_users *all = calloc(ST_USERS_SLOTS + 1, sizeof(*all));

    assert_non_null(all);
    for (uint32_t i = 0; i <= ST_USERS_SLOTS; i++)
        st_users_join_at(&all[i], scratch_fd);
    assert_int_equal(st_users_holders(&all[0]), ST_USERS_SLOTS);
    assert_int_equal(all[ST_USERS_SLOTS].fd, -1);
    assert_int_equal(st_users_holders(&all[ST_USERS_SLOTS]), 1);
    for (uint32_t i = 0; i <= ST_USERS_SLOTS; i++)
        st_users_leave(&all[i]);
    assert_false(file_is_there());
    free(all);
}

/* Joining while others leave: whoever has joined finds the file in its place, and all that live together count each other. */
TEST(many_come_and_go)
{
    pid_t pids[4];

    for (uint32_t i = 0; i < 4; i++) {
        pids[i] = child_fork();
        if (pids[i] == 0) {
            for (uint32_t n = 0; n < 300; n++) {
                struct st_users users;

                st_users_join_at(&users, scratch_fd);
                if (st_users_holders(&users) > 4 || (users.fd >= 0 && !file_is_there()))
                    _exit(1);
                st_users_leave(&users);
            }
            _exit(0);
        }
    }
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(child_wait(pids[i]), 0);
    assert_false(file_is_there());
}

TEST(foreign_files_are_left_alone)
{
    struct st_users users;
    char path[128];

    file_path(path);
    write_file(path, "mine", 4);
    st_users_join_at(&users, scratch_fd);
    assert_int_equal(users.fd, -1);
    assert_int_equal(st_users_holders(&users), 1);
    st_users_leave(&users);
    st_users_sweep_at(scratch_fd);
    assert_true(file_is_there());
    assert_int_equal(unlink(path), 0);

    assert_int_equal(symlink("/dev/null", path), 0);
    st_users_join_at(&users, scratch_fd);
    assert_int_equal(users.fd, -1);
    assert_int_equal(unlink(path), 0);

    assert_int_equal(mkdir(path, 0700), 0);
    st_users_join_at(&users, scratch_fd);
    assert_int_equal(users.fd, -1);
    assert_int_equal(rmdir(path), 0);

    st_fault_arm(&(struct st_fault_spec){.site = "nvme.users", .result = -EACCES});
    st_users_join_at(&users, scratch_fd);
    assert_true(st_fault_disarm() > 0);
    assert_int_equal(users.fd, -1);
    assert_false(file_is_there());
    st_users_join_at(&users, -1);
    assert_int_equal(users.fd, -1);
}

TEST(parts_are_at_least_one)
{
    assert_int_equal(st_users_part(32, 1), 32);
    assert_int_equal(st_users_part(32, 3), 10);
    assert_int_equal(st_users_part(4, 4), 1);
    assert_int_equal(st_users_part(2, 64), 1);
}

TEST_MAIN(argc, argv)
{
    if (scratch_create(NULL) != 0 || (scratch_fd = open(scratch_dir, O_RDONLY | O_DIRECTORY)) < 0 || !locks_work()) {
        print_message("no temporary scratch_dir, or no open file description locks in it: %s\n", strerror(errno));
        return 77;
    }
    return test_run(NULL, scratch_remove);
}
