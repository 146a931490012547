/* tests/core/test_launch.c - which rank this is, from lists of variables as launchers set them. */
#include "core/base/error.h"
#include "core/system/launch.h"
#include "strata/status.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

#define VARIABLES_MAX 16

struct found {
    const char *variables[VARIABLES_MAX];
    uint32_t rank, ranks, local_rank, local_ranks;
    const char *address;
    uint32_t port;
    bool mpi;
    const char *source; /* NULL: alone */
};

#define NONE ST_LAUNCH_NONE

static const struct found rows[] = {
    {{"PATH=/bin", "RANK="}, 0, 1, 0, 1, "127.0.0.1", 29500, false, NULL},
    /* as torchrun, accelerate and deepspeed set them */
    {{"RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=node1", "MASTER_PORT=29500",
      "TORCHELASTIC_RUN_ID=none"},
     3,
     4,
     1,
     2,
     "node1",
     29500,
     false,
     "torchrun"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65000", "TORCHELASTIC_RUN_ID=x"},
     0,
     2,
     NONE,
     NONE,
     "127.0.0.1",
     65000,
     false,
     "torchrun"},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=none",
      "ACCELERATE_MIXED_PRECISION=no"},
     1,
     2,
     1,
     2,
     "127.0.0.1",
     29500,
     false,
     "accelerate launch"},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_SIZE=2", "CROSS_RANK=0", "CROSS_SIZE=1", "MASTER_ADDR=127.0.0.1",
      "MASTER_PORT=29501"},
     1,
     2,
     1,
     2,
     "127.0.0.1",
     29501,
     false,
     "deepspeed"},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=40000",
      "STRATA_LAUNCHER=17", "ACCELERATE_MIXED_PRECISION=no"},
     1,
     2,
     1,
     2,
     "127.0.0.1",
     40000,
     false,
     "strata launch"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=::1"}, 0, 2, NONE, NONE, "::1", 29500, false, "torch's variables"},
    /* one process on each of two machines, and nobody says where the first one is */
    {{"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"}, 0, 2, 0, 1, "", 29500, false, "torch's variables"},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
      "MASTER_PORT=1"},
     1,
     2,
     1,
     2,
     "127.0.0.1",
     1,
     true,
     "mpirun"},
    {{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=2"}, 0, 2, 0, 2, "127.0.0.1", 29500, true, "mpiexec"},
    {{"SLURM_PROCID=5", "SLURM_NTASKS=7", "SLURM_LOCALID=1", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_NODEID=2",
      "SLURM_STEP_NODELIST=gpu[003-005,009],x", "MASTER_PORT=4000"},
     5,
     7,
     1,
     2,
     "gpu003",
     4000,
     true,
     "srun"},
    {{"SLURM_PROCID=6", "SLURM_NTASKS=7", "SLURM_LOCALID=0", "SLURM_STEP_TASKS_PER_NODE=2(x3),1", "SLURM_NODEID=3",
      "SLURM_STEP_NODELIST=a,b", "MASTER_PORT=4000"},
     6,
     7,
     0,
     1,
     "a",
     4000,
     true,
     "srun"},
    /* one node: no name is looked up; where it is not known whether it is one, the first is asked */
    {{"SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_NODEID=0",
      "SLURM_STEP_NODELIST=gpu7", "MASTER_PORT=4000"},
     2,
     4,
     2,
     4,
     "127.0.0.1",
     4000,
     true,
     "srun"},
    {{"SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_LOCALID=2", "SLURM_STEP_NODELIST=gpu[7-8]", "MASTER_PORT=4000"},
     2,
     4,
     2,
     ST_LAUNCH_NONE,
     "gpu7",
     4000,
     true,
     "srun"},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=1"}, 0, 1, 0, 1, "127.0.0.1", 29500, false, NULL},
    /* the number of a step's tasks, not that of the job's; the script of a job is one process */
    {{"SLURM_PROCID=1", "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "MASTER_PORT=5"},
     1,
     2,
     NONE,
     NONE,
     "127.0.0.1",
     5,
     true,
     "srun"},
    {{"SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=7", "MASTER_PORT=5"}, 0, 1, 0, 1, "127.0.0.1", 5, false, NULL},
    /* a launcher that another one has started is not asked */
    {{"RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "MASTER_ADDR=n", "MASTER_PORT=6", "TORCHELASTIC_RUN_ID=1",
      "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "SLURM_PROCID=1", "SLURM_NTASKS=2"},
     5,
     8,
     1,
     4,
     "n",
     6,
     false,
     "torchrun"},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "MASTER_PORT=6"},
     1,
     4,
     NONE,
     NONE,
     "127.0.0.1",
     6,
     true,
     "mpirun"},
    /* two that agree */
    {{"RANK=1", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2"},
     1,
     2,
     NONE,
     2,
     "127.0.0.1",
     29500,
     true,
     "torch's variables"},
};

TEST(test_launchers)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_launch l = ST_LAUNCH_UNKNOWN;

        print_message("row %zu: %s\n", i, rows[i].variables[0]);
        assert_int_equal(st_launch_find(&l, rows[i].variables), STRATA_OK);
        assert_int_equal(l.rank, rows[i].rank);
        assert_int_equal(l.ranks, rows[i].ranks);
        assert_int_equal(l.local_rank, rows[i].local_rank);
        assert_int_equal(l.local_ranks, rows[i].local_ranks);
        assert_string_equal(l.address, rows[i].address);
        assert_int_equal(l.port, rows[i].port);
        assert_int_equal(l.mpi, rows[i].mpi);
        assert_int_equal(l.source == NULL, rows[i].source == NULL);
        if (l.source != NULL)
            assert_string_equal(l.source, rows[i].source);
    }
}

/* Every process of a run finds the same port, and another run most likely another one. */
TEST(test_port_of_a_run)
{
    const char *const first[] = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=589692929", NULL};
    const char *const second[] = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=589692929", NULL};
    const char *const other[] = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=589692930", NULL};
    struct st_launch a = ST_LAUNCH_UNKNOWN, b = ST_LAUNCH_UNKNOWN, c = ST_LAUNCH_UNKNOWN;

    assert_int_equal(st_launch_find(&a, first), STRATA_OK);
    assert_int_equal(st_launch_find(&b, second), STRATA_OK);
    assert_int_equal(st_launch_find(&c, other), STRATA_OK);
    assert_int_equal(a.port, b.port);
    assert_int_not_equal(a.port, c.port);
    assert_in_range(a.port, 1024, 32767);
}

/* Options come before variables, but must not contradict them. */
TEST(test_options)
{
    const char *const none[] = {NULL};
    const char *const torch[] = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=n", "MASTER_PORT=7",
                                 NULL};
    struct st_launch l = ST_LAUNCH_UNKNOWN;

    l.rank = 1, l.ranks = 2, l.port = 9;
    assert_int_equal(st_launch_find(&l, torch), STRATA_OK);
    assert_string_equal(l.source, "comm.rank and comm.ranks");
    assert_int_equal(l.local_ranks, 2);
    assert_string_equal(l.address, "n");
    assert_int_equal(l.port, 9);

    l = ST_LAUNCH_UNKNOWN; /* --local_rank alone, as deepspeed appends it */
    l.local_rank = 1;
    assert_int_equal(st_launch_find(&l, torch), STRATA_OK);
    assert_string_equal(l.source, "torch's variables");
    l = ST_LAUNCH_UNKNOWN;
    l.local_rank = 3;
    assert_int_equal(st_launch_find(&l, none), STRATA_OK);
    assert_int_equal(l.ranks, 1);
    assert_int_equal(l.local_rank, 0);
}

static const struct {
    uint32_t rank, ranks; /* options */
    const char *variables[VARIABLES_MAX];
    const char *words[3]; /* of the sentence */
} mistakes[] = {
    {NONE,
     NONE,
     {"RANK=0", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2"},
     {"RANK 0", "OMPI_COMM_WORLD_RANK 1", "contradict"}},
    {NONE,
     NONE,
     {"RANK=0", "WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"},
     {"WORLD_SIZE 1", "OMPI_COMM_WORLD_SIZE 2"}},
    {NONE,
     NONE,
     {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMI_RANK=0", "PMI_SIZE=2"},
     {"OMPI_COMM_WORLD_SIZE 4", "PMI_SIZE 2"}},
    {1, 2, {"RANK=0", "WORLD_SIZE=2"}, {"comm.rank 1", "RANK 0"}},
    {1, NONE, {NULL}, {"comm.rank is 1", "comm.ranks is not given"}},
    {NONE, 2, {NULL}, {"comm.ranks is 2", "comm.rank is not given"}},
    {2, 2, {NULL}, {"comm.rank is 2", "comm.ranks is 2", "0 to 1"}},
    {NONE, NONE, {"RANK=0"}, {"RANK is 0", "WORLD_SIZE is not given"}},
    {NONE, NONE, {"WORLD_SIZE=4"}, {"WORLD_SIZE is 4", "RANK is not given"}},
    {NONE, NONE, {"RANK=4", "WORLD_SIZE=4"}, {"RANK is 4", "WORLD_SIZE is 4"}},
    {NONE, NONE, {"RANK=-1", "WORLD_SIZE=4"}, {"RANK is \"-1\"", "not a number"}},
    {NONE, NONE, {"RANK= 1", "WORLD_SIZE=4"}, {"not a number"}},
    {NONE, NONE, {"RANK=1x", "WORLD_SIZE=4"}, {"RANK is \"1x\""}},
    {NONE, NONE, {"RANK=0", "WORLD_SIZE=0"}, {"WORLD_SIZE is 0", "1 to 1024"}},
    {NONE, NONE, {"RANK=0", "WORLD_SIZE=99999999999999999999"}, {"WORLD_SIZE is 99999", "1 to 1024"}},
    {NONE, NONE, {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}, {"local rank 2 of 2", "torch's variables"}},
    {NONE, NONE, {"RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=4"}, {"4 ranks on this machine, of 2"}},
    {NONE, NONE, {"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=70000"}, {"MASTER_PORT is 70000", "1 to 65535"}},
};

TEST(test_mistakes)
{
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        struct st_launch l = ST_LAUNCH_UNKNOWN;

        l.rank = mistakes[i].rank;
        l.ranks = mistakes[i].ranks;
        print_message("mistake %zu\n", i);
        assert_int_equal(st_launch_find(&l, mistakes[i].variables), STRATA_E_INVAL);
        for (size_t w = 0; w < 3 && mistakes[i].words[w] != NULL; w++)
            if (strstr(strata_last_error(), mistakes[i].words[w]) == NULL)
                fail_msg("\"%s\" lacks \"%s\"", strata_last_error(), mistakes[i].words[w]);
        assert_null(l.source); /* nothing is written */
    }
}

TEST(test_long_address)
{
    char address[ST_LAUNCH_ADDRESS_MAX + 20];
    const char *const variables[] = {"RANK=0", "WORLD_SIZE=2", address, NULL};
    struct st_launch l = ST_LAUNCH_UNKNOWN;

    memset(address, 'a', sizeof(address) - 1);
    address[sizeof(address) - 1] = '\0';
    memcpy(address, "MASTER_ADDR=", strlen("MASTER_ADDR="));
    assert_int_equal(st_launch_find(&l, variables), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "MASTER_ADDR"));
}

/* Help names every variable that is read, each once. */
TEST(test_variables_are_listed)
{
    uint32_t count = 0;

    while (st_launch_variable(count) != NULL)
        count++;
    assert_true(count > 20);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_string_not_equal(st_launch_variable(i), st_launch_variable(k));
}

/* With one process, too, where it names no rank. */
TEST(accelerate_is_known_by_its_precision)
{
    static const char *const its[] = {"PATH=/bin", ST_LAUNCH_ACCELERATE "=no", NULL};
    static const char *const others[] = {"RANK=0", "WORLD_SIZE=1", "ACCELERATE_MIXED_PRECISIONS=no", ST_LAUNCH_ACCELERATE "=",
                                         NULL};

    assert_true(st_launch_by_accelerate(its));
    assert_false(st_launch_by_accelerate(others));
}
