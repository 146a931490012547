/* core/system/launch.c - see launch.h. */
#include "core/system/launch.h"
#include "core/base/checksum.h"
#include "core/base/error.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 2u

/* What one launcher says, in variables; of several names the first that is set. */
struct source {
    const char *name;
    bool mpi;
    const char *rank[NAMES_MAX], *ranks[NAMES_MAX], *local_rank[NAMES_MAX], *local_ranks[NAMES_MAX];
};

enum { SOURCE_TORCH, SOURCE_OMPI, SOURCE_PMI, SOURCE_SLURM, SOURCE_COUNT };

/* reference: torch.distributed.run, OpenMPI's mpirun(1), MPICH's hydra, Slurm's srun(1). */
static const struct source sources[SOURCE_COUNT] = {
    [SOURCE_TORCH] = {"torch's variables", false, {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}},
    [SOURCE_OMPI] = {"mpirun",
                     true,
                     {"OMPI_COMM_WORLD_RANK"},
                     {"OMPI_COMM_WORLD_SIZE"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
    [SOURCE_PMI] = {"mpiexec", true, {"PMI_RANK"}, {"PMI_SIZE"}, {"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}},
    [SOURCE_SLURM] = {"srun", true, {"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, {NULL}},
};

/* Which of the programs that set torch's variables it is: each sets one that the others do not. */
static const struct {
    const char *name, *mark;
} torch_launchers[] = {
    {"strata launch", "STRATA_LAUNCHER"},
    {"accelerate launch", ST_LAUNCH_ACCELERATE},
    {"torchrun", "TORCHELASTIC_RUN_ID"},
    {"deepspeed", "CROSS_SIZE"},
};

/* Which launcher it is, where rank 0 listens, and what tells one run from another. */
static const char *const other_variables[] = {"MASTER_ADDR",
                                              "MASTER_PORT",
                                              "STRATA_LAUNCHER",
                                              "TORCHELASTIC_RUN_ID",

                                              ST_LAUNCH_ACCELERATE,
                                              "CROSS_SIZE",
                                              "SLURM_STEP_ID",
                                              "SLURM_STEP_NODELIST",
                                              "SLURM_JOB_ID",
                                              "SLURM_STEP_TASKS_PER_NODE",
                                              "SLURM_NODEID",
                                              "OMPI_MCA_ess_base_jobid"};

const char *st_launch_variable(uint32_t index)
{
    for (uint32_t s = 0; s < SOURCE_COUNT; s++) {
        const char *const *names[] = {sources[s].rank, sources[s].ranks, sources[s].local_rank, sources[s].local_ranks};

        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t n = 0; n < NAMES_MAX && names[k][n] != NULL; n++)
                if (index-- == 0)
                    return names[k][n];
    }
    return index < sizeof(other_variables) / sizeof(other_variables[0]) ? other_variables[index] : NULL;
}

/* --- variables --- */

/* NULL: not set, or empty. */
static const char *value_of(const char *const *variables, const char *name)
{
    const size_t length = strlen(name);

    for (; *variables != NULL; variables++)
        if (strncmp(*variables, name, length) == 0 && (*variables)[length] == '=')
            return (*variables)[length + 1] != '\0' ? *variables + length + 1 : NULL;
    return NULL;
}

bool st_launch_by_accelerate(const char *const *variables)
{
    return value_of(variables, ST_LAUNCH_ACCELERATE) != NULL;
}

/* The first name that is set; NULL: none. */
static const char *name_set(const char *const *variables, const char *const names[NAMES_MAX])
{
    for (uint32_t i = 0; i < NAMES_MAX && names[i] != NULL; i++)
        if (value_of(variables, names[i]) != NULL)
            return names[i];
    return NULL;
}

/* *out stays where the variable is not set. */
static strata_status read_number(uint32_t *out, const char *const *variables, const char *name, uint32_t least, uint32_t most)
{
    const char *text = name != NULL ? value_of(variables, name) : NULL;
    unsigned long value;
    char *end;

    if (text == NULL)
        return STRATA_OK;
    value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0')
        return st_error(STRATA_E_INVAL, "%s is \"%.64s\", which is not a number: the launcher sets it, or nobody should", name,
                        text);
    if (value < least || value > most)
        return st_error(STRATA_E_INVAL, "%s is %.64s: %u to %u are possible", name, text, least, most);
    *out = (uint32_t)value;
    return STRATA_OK;
}

/* --- one source --- */

/* Says of a rank and a number of ranks where they come from. */
struct claim {
    uint32_t rank, ranks, local_rank, local_ranks;
    const char *rank_name, *ranks_name; /* "comm.rank", "RANK" */
};

static strata_status check_claim(const struct claim *c)
{
    if (c->rank == ST_LAUNCH_NONE || c->ranks == ST_LAUNCH_NONE)
        return st_error(STRATA_E_INVAL,
                        "%s is %u, but %s is not given: a rank needs the number of ranks, and the other way round",
                        c->rank == ST_LAUNCH_NONE ? c->ranks_name : c->rank_name, c->rank == ST_LAUNCH_NONE ? c->ranks : c->rank,
                        c->rank == ST_LAUNCH_NONE ? c->rank_name : c->ranks_name);
    if (c->rank >= c->ranks)
        return st_error(STRATA_E_INVAL, "%s is %u, but %s is %u: ranks are 0 to %u", c->rank_name, c->rank, c->ranks_name,
                        c->ranks, c->ranks - 1);
    return STRATA_OK;
}

static strata_status read_claim(struct claim *c, const struct source *source, const char *const *variables)
{
    strata_status st;

    *c = (struct claim){ST_LAUNCH_NONE,
                        ST_LAUNCH_NONE,
                        ST_LAUNCH_NONE,
                        ST_LAUNCH_NONE,
                        name_set(variables, source->rank),
                        name_set(variables, source->ranks)};
    st = read_number(&c->rank, variables, c->rank_name, 0, ST_LAUNCH_RANKS_MAX - 1);
    if (st == STRATA_OK)
        st = read_number(&c->ranks, variables, c->ranks_name, 1, ST_LAUNCH_RANKS_MAX);
    if (st == STRATA_OK)
        st = read_number(&c->local_rank, variables, name_set(variables, source->local_rank), 0, ST_LAUNCH_RANKS_MAX - 1);
    if (st == STRATA_OK)
        st = read_number(&c->local_ranks, variables, name_set(variables, source->local_ranks), 1, ST_LAUNCH_RANKS_MAX);
    if (c->rank_name == NULL)
        c->rank_name = source->rank[0];
    if (c->ranks_name == NULL)
        c->ranks_name = source->ranks[0];
    return st != STRATA_OK || (c->rank == ST_LAUNCH_NONE && c->ranks == ST_LAUNCH_NONE) ? st : check_claim(c);
}

static bool is_given(const struct claim *c)
{
    return c->rank != ST_LAUNCH_NONE;
}

static strata_status compare(const struct claim *first, const struct claim *other)
{
    if (first->rank == other->rank && first->ranks == other->ranks)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "%s %u and %s %u contradict %s %u and %s %u: unset those that do not belong to this run",
                    first->rank_name, first->rank, first->ranks_name, first->ranks, other->rank_name, other->rank,
                    other->ranks_name, other->ranks);
}

/* --- Slurm --- */

/* srun starts the tasks of a step; the script of a job has the job's variables, but is one process. */
static bool slurm_started(const char *const *variables)
{
    const char *const ranks = name_set(variables, sources[SOURCE_SLURM].ranks);
    const bool within_job = value_of(variables, "SLURM_JOB_ID") != NULL,
               within_step = value_of(variables, "SLURM_STEP_ID") != NULL;

    return ranks != NULL && strcmp(value_of(variables, ranks), "1") != 0 && (within_step || !within_job);
}

/* The first name of "n[03-04,7],m1": n03.  "": none. */
static void first_node(char name[ST_LAUNCH_ADDRESS_MAX], const char *list)
{
    const size_t plain = strcspn(list, "[,");
    size_t length = plain < ST_LAUNCH_ADDRESS_MAX ? plain : ST_LAUNCH_ADDRESS_MAX - 1;

    memcpy(name, list, length);
    if (list[plain] == '[')
        for (list += plain + 1; isdigit((unsigned char)*list) && length + 1 < ST_LAUNCH_ADDRESS_MAX; list++)
            name[length++] = *list;
    name[length] = '\0';
}

/* Tasks on this node, of "2(x3),1"; NONE: not known. */
static uint32_t tasks_here(const char *const *variables)
{
    const char *text = value_of(variables, "SLURM_STEP_TASKS_PER_NODE"), *node_text = value_of(variables, "SLURM_NODEID");
    unsigned long node = node_text != NULL ? strtoul(node_text, NULL, 10) : 0;

    while (text != NULL && isdigit((unsigned char)*text)) {
        char *end;
        const unsigned long tasks = strtoul(text, &end, 10);
        const unsigned long nodes = strncmp(end, "(x", 2) == 0 ? strtoul(end + 2, &end, 10) : 1;

        if (node < nodes)
            return tasks > 0 && tasks <= ST_LAUNCH_RANKS_MAX ? (uint32_t)tasks : ST_LAUNCH_NONE;
        node -= nodes;
        text = strchr(end, ',');
        text = text != NULL ? text + 1 : NULL;
    }
    return ST_LAUNCH_NONE;
}

/* --- where the ranks meet --- */

/* Ports that neither services nor the kernel take by themselves. */
#define PORT_FIRST   20000u
#define PORT_COUNT   10000u
#define PORT_MOST    65535u
#define PORT_DEFAULT 29500u /* torch's */

/* The same for all processes of a run, and for other runs most likely another one. */
static uint32_t port_of_run(const char *const *variables)
{
    static const char *const names[] = {"OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID"};
    char text[256] = "";
    size_t length = 0;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *value = value_of(variables, names[i]);

        if (value != NULL)
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%.64s;", value);
    }
    return length > 0 ? PORT_FIRST + (uint32_t)(st_checksum64(text, length) % PORT_COUNT) : PORT_DEFAULT;
}

static strata_status find_port(struct st_launch *l, const char *const *variables)
{
    const strata_status st = l->port == 0 ? read_number(&l->port, variables, "MASTER_PORT", 1, PORT_MOST) : STRATA_OK;

    if (l->port == 0)
        l->port = port_of_run(variables);
    return st;
}

/* Where nobody says anything the ranks are those of this machine, unless it is known that others are elsewhere. */
static strata_status find_address(struct st_launch *l, const char *const *variables)
{
    const char *address = value_of(variables, "MASTER_ADDR"), *nodes = value_of(variables, "SLURM_STEP_NODELIST");

    if (l->address[0] != '\0')
        return STRATA_OK;
    if (address != NULL && strlen(address) >= sizeof(l->address))
        return st_error(STRATA_E_INVAL, "MASTER_ADDR has %zu bytes, at most %zu are possible", strlen(address),
                        sizeof(l->address) - 1);
    if (address != NULL)
        memcpy(l->address, address, strlen(address) + 1);
    else if (nodes != NULL && l->ranks != l->local_ranks)
        first_node(l->address, nodes);
    else if (l->ranks == l->local_ranks || l->local_ranks == ST_LAUNCH_NONE)
        memcpy(l->address, "127.0.0.1", sizeof("127.0.0.1"));
    return STRATA_OK;
}

/* --- all sources --- */

static const char options_name[] = "comm.rank and comm.ranks";

bool st_launch_by_hand(const char *source)
{
    return source == NULL || strcmp(source, options_name) == 0 || strcmp(source, sources[SOURCE_TORCH].name) == 0;
}

static const char *torch_launcher(const char *const *variables)
{
    for (size_t i = 0; i < sizeof(torch_launchers) / sizeof(torch_launchers[0]); i++)
        if (value_of(variables, torch_launchers[i].mark) != NULL)
            return torch_launchers[i].name;
    return sources[SOURCE_TORCH].name;
}

static strata_status check_local(const struct st_launch *l)
{
    if (l->local_rank != ST_LAUNCH_NONE && l->local_ranks != ST_LAUNCH_NONE && l->local_rank >= l->local_ranks)
        return st_error(STRATA_E_INVAL, "local rank %u of %u on this machine (%s): local ranks are 0 to %u", l->local_rank,
                        l->local_ranks, l->source, l->local_ranks - 1);
    if (l->local_ranks != ST_LAUNCH_NONE && l->local_ranks > l->ranks)
        return st_error(STRATA_E_INVAL, "%u ranks on this machine, of %u in all (%s)", l->local_ranks, l->ranks, l->source);
    return STRATA_OK;
}

/* Takes from a source what nobody before it has said. */
static void take(struct st_launch *l, const struct claim *c)
{
    l->rank = c->rank;
    l->ranks = c->ranks;
    if (l->local_rank == ST_LAUNCH_NONE)
        l->local_rank = c->local_rank;
    if (l->local_ranks == ST_LAUNCH_NONE)
        l->local_ranks = c->local_ranks;
}

/* Asks one source.  `first` is the claim that counts; before there is one, this source's may become it. */
static strata_status ask(struct st_launch *l, struct claim *first, uint32_t s, const char *const *variables)
{
    const bool outer = s != SOURCE_TORCH && value_of(variables, "TORCHELASTIC_RUN_ID") != NULL; /* it started torchrun's agent */
    struct claim c;
    strata_status st;

    if (outer || (s == SOURCE_SLURM && (l->source != NULL || !slurm_started(variables))))
        return STRATA_OK;
    st = read_claim(&c, &sources[s], variables);
    if (st != STRATA_OK || !is_given(&c))
        return st;
    if (s == SOURCE_SLURM && c.local_ranks == ST_LAUNCH_NONE)
        c.local_ranks = tasks_here(variables);
    if (is_given(first) && (st = compare(first, &c)) != STRATA_OK)
        return st;
    if (!is_given(first)) {
        *first = c;
        l->source = s == SOURCE_TORCH ? torch_launcher(variables) : sources[s].name;
    }
    l->mpi = l->mpi || sources[s].mpi;
    take(l, &c);
    return STRATA_OK;
}

strata_status st_launch_find(struct st_launch *launch, const char *const *variables)
{
    struct claim first = {.rank = launch->rank, .ranks = launch->ranks, .rank_name = "comm.rank", .ranks_name = "comm.ranks"};
    struct st_launch l = *launch;
    strata_status st = STRATA_OK;

    if (first.rank != ST_LAUNCH_NONE || first.ranks != ST_LAUNCH_NONE) {
        st = check_claim(&first);
        l.source = options_name;
    }
    for (uint32_t s = 0; s < SOURCE_COUNT && st == STRATA_OK; s++)
        st = ask(&l, &first, s, variables);
    if (st == STRATA_OK && l.source == NULL)
        l.rank = 0, l.ranks = 1, l.local_rank = 0, l.local_ranks = 1;
    if (st == STRATA_OK)
        st = check_local(&l);
    if (st == STRATA_OK)
        st = find_port(&l, variables);
    if (st == STRATA_OK)
        st = find_address(&l, variables);
    if (st == STRATA_OK)
        *launch = l;
    return st;
}
