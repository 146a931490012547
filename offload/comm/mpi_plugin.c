/* mpi_plugin.c - strata_mpi.so: MPI behind offload/comm/mpi_plugin.h.  Only calls of MPI-3.1, counts below 2^31, only bytes; no
 * call but the first and the last one waits. */
#include "offload/comm/mpi_plugin.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

struct mpi {
    MPI_Comm comm; /* the world's ranks, but only for this program's messages */
    int started;   /* by us */
    int slots;
    MPI_Request *requests; /* [slots] */
    MPI_Status *statuses;  /* [slots] */
    int *indices;          /* [slots] */
};

extern __attribute__((visibility("default"))) const struct st_mpi_plugin strata_mpi;

static int start(struct mpi *m, struct st_mpi_world *out)
{
    int running = 0, level = MPI_THREAD_SINGLE, rc = MPI_Initialized(&running);

    if (rc == MPI_SUCCESS)
        rc = running ? MPI_Query_thread(&level) : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    m->started = rc == MPI_SUCCESS && !running;
    out->serialized = level >= MPI_THREAD_SERIALIZED;
    return rc;
}

static int place(struct mpi *m, struct st_mpi_world *out)
{
    MPI_Comm node = MPI_COMM_NULL;
    int rank = 0, ranks = 0, local_rank = 0, local_ranks = 0;
    int rc = MPI_Comm_dup(MPI_COMM_WORLD, &m->comm);

    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_rank(m->comm, &rank);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_size(m->comm, &ranks);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_split_type(m->comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_rank(node, &local_rank);
    if (rc == MPI_SUCCESS)
        rc = MPI_Comm_size(node, &local_ranks);
    if (node != MPI_COMM_NULL)
        (void)MPI_Comm_free(&node);
    out->rank = (uint32_t)rank;
    out->ranks = (uint32_t)ranks;
    out->local_rank = (uint32_t)local_rank;
    out->local_ranks = (uint32_t)local_ranks;
    return rc;
}

static void name_library(char out[ST_MPI_TEXT_BYTES])
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int bytes = 0;

    if (MPI_Get_library_version(text, &bytes) != MPI_SUCCESS)
        return;
    text[strcspn(text, "\n")] = '\0';
    strncpy(out, text, ST_MPI_TEXT_BYTES - 1);
    out[ST_MPI_TEXT_BYTES - 1] = '\0';
}

static int allocate(struct mpi *m, uint32_t slots)
{
    m->requests = calloc(slots, sizeof(*m->requests));
    m->statuses = calloc(slots, sizeof(*m->statuses));
    m->indices = calloc(slots, sizeof(*m->indices));
    if (m->requests == NULL || m->statuses == NULL || m->indices == NULL)
        return MPI_ERR_NO_MEM;
    for (uint32_t i = 0; i < slots; i++)
        m->requests[i] = MPI_REQUEST_NULL;
    m->slots = (int)slots;
    return MPI_SUCCESS;
}

static void discard(struct mpi *m)
{
    free(m->requests);
    free(m->statuses);
    free(m->indices);
    free(m);
}

static int plugin_open(void **mpi, uint32_t slots, struct st_mpi_world *out)
{
    struct mpi *m = calloc(1, sizeof(*m));
    int rc;

    if (m == NULL)
        return MPI_ERR_NO_MEM;
    memset(out, 0, sizeof(*out));
    m->comm = MPI_COMM_NULL;
    name_library(out->library);
    rc = start(m, out);
    if (rc == MPI_SUCCESS)
        rc = place(m, out);
    if (rc == MPI_SUCCESS)
        rc = allocate(m, slots * out->ranks);
    if (rc == MPI_SUCCESS)
        *mpi = m;
    else
        discard(m);
    return rc;
}

static int plugin_send(void *mpi, uint32_t slot, const void *data, uint32_t bytes, uint32_t to, enum st_mpi_tag tag)
{
    struct mpi *m = mpi;

    return MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, (int)tag, m->comm, &m->requests[slot]);
}

static int plugin_receive(void *mpi, uint32_t slot, void *data, uint32_t bytes, uint32_t from, enum st_mpi_tag tag)
{
    struct mpi *m = mpi;
    const int source = from == ST_MPI_ANY_RANK ? MPI_ANY_SOURCE : (int)from;

    return MPI_Irecv(data, (int)bytes, MPI_BYTE, source, (int)tag, m->comm, &m->requests[slot]);
}

static int plugin_cancel(void *mpi, uint32_t slot)
{
    struct mpi *m = mpi;

    return m->requests[slot] != MPI_REQUEST_NULL ? MPI_Cancel(&m->requests[slot]) : MPI_SUCCESS;
}

static int plugin_test(void *mpi, struct st_mpi_done *done, uint32_t *count)
{
    struct mpi *m = mpi;
    int ended = 0, bytes = 0;
    const int rc = MPI_Testsome(m->slots, m->requests, &ended, m->indices, m->statuses);

    *count = 0;
    if (rc != MPI_SUCCESS && rc != MPI_ERR_IN_STATUS)
        return rc;
    for (int i = 0; ended != MPI_UNDEFINED && i < ended; i++) {
        const int error = rc == MPI_ERR_IN_STATUS ? m->statuses[i].MPI_ERROR : MPI_SUCCESS;

        /* What a send's status counts is undefined, and nobody looks at it. */
        if (error != MPI_SUCCESS || MPI_Get_count(&m->statuses[i], MPI_BYTE, &bytes) != MPI_SUCCESS || bytes == MPI_UNDEFINED)
            bytes = 0;
        done[(*count)++] = (struct st_mpi_done){.slot = (uint32_t)m->indices[i], .bytes = (uint32_t)bytes, .error = error};
    }
    return MPI_SUCCESS;
}

static void plugin_error_text(int error, char text[ST_MPI_TEXT_BYTES])
{
    char long_text[MPI_MAX_ERROR_STRING] = "";
    int bytes = 0;

    if (MPI_Error_string(error, long_text, &bytes) != MPI_SUCCESS)
        long_text[0] = '\0';
    strncpy(text, long_text, ST_MPI_TEXT_BYTES - 1);
    text[ST_MPI_TEXT_BYTES - 1] = '\0';
}

static void plugin_end(void *mpi, int exit_code)
{
    (void)mpi;
    (void)MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static int plugin_close(void *mpi, uint32_t whole)
{
    struct mpi *m = mpi;
    int rc = whole ? MPI_Comm_free(&m->comm) : MPI_SUCCESS;

    if (whole && m->started && rc == MPI_SUCCESS)
        rc = MPI_Finalize();
    discard(m);
    return rc;
}

const struct st_mpi_plugin strata_mpi = {
    .abi = ST_MPI_ABI,
    .bytes = sizeof(struct st_mpi_plugin),
    .open = plugin_open,
    .send = plugin_send,
    .receive = plugin_receive,
    .cancel = plugin_cancel,
    .test = plugin_test,
    .error_text = plugin_error_text,
    .end = plugin_end,
    .close = plugin_close,
};
