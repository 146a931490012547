/* offload/comm/comm_socket.c - see comm_socket.h. */
#include "offload/comm/comm_socket.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 4096
#define TICK_NS UINT64_C(1000000000)

static socklen_t address_bytes(const union st_address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof(address->v6) : sizeof(address->v4);
}

static int new_socket(int family)
{
    const int fd = st_fault_refuses("comm.socket") ? -1 : socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    return fd < 0 ? -errno : fd;
}

static int listen_on(const union st_address *address)
{
    const int yes = 1, no = 0, fd = new_socket(address->any.sa_family);
    int err = 0;

    if (fd < 0)
        return fd;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)); /* connections of a run before may still be ending */
    if (address->any.sa_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
    if (st_fault_refuses("comm.bind") || bind(fd, &address->any, address_bytes(address)) != 0 || listen(fd, BACKLOG) != 0) {
        err = errno;
        close(fd);
        return -err;
    }
    return fd;
}

int st_socket_listen(uint16_t port)
{
    const union st_address v6 = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT}};
    const union st_address v4 = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_ANY)}}};
    const int fd = listen_on(&v6);

    return fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL ? listen_on(&v4) : fd; /* a machine without IPv6 */
}

/* Names of local sockets begin with a NUL where they are no files.  The system chooses one of five letters. */
static socklen_t local_address(struct sockaddr_un *address, const char *name)
{
    const size_t length = strnlen(name, ST_LOCAL_NAME_BYTES - 1);

    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int name_of(char name[ST_LOCAL_NAME_BYTES], int fd)
{
    struct sockaddr_un address;
    socklen_t bytes = sizeof(address);
    size_t length;

    if (st_fault_refuses("comm.name") || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return -errno;
    length = bytes - offsetof(struct sockaddr_un, sun_path);
    if (length < 2 || length > ST_LOCAL_NAME_BYTES)
        return -EPROTO;
    memcpy(name, address.sun_path + 1, length - 1);
    name[length - 1] = '\0';
    return 0;
}

int st_socket_listen_local(char name[ST_LOCAL_NAME_BYTES])
{
    const struct sockaddr any = {.sa_family = AF_UNIX};
    int fd = new_socket(AF_UNIX), err;

    if (fd < 0)
        return fd;
    if (st_fault_refuses("comm.bind") || bind(fd, &any, sizeof(sa_family_t)) != 0 || listen(fd, BACKLOG) != 0)
        err = -errno;
    else
        err = name_of(name, fd);
    if (err == 0)
        return fd;
    close(fd);
    return err;
}

int st_socket_connect_local(const char *name)
{
    struct sockaddr_un address;
    const socklen_t bytes = local_address(&address, name);
    int fd = new_socket(AF_UNIX), err;

    if (fd < 0 || (!st_fault_refuses("comm.connect") && connect(fd, (const struct sockaddr *)&address, bytes) == 0))
        return fd;
    err = -errno;
    close(fd);
    return err;
}

int st_socket_port(int fd)
{
    union st_address address;
    socklen_t bytes = sizeof(address);

    if (st_fault_refuses("comm.name") || getsockname(fd, &address.any, &bytes) != 0)
        return -errno;
    return ntohs(address.any.sa_family == AF_INET6 ? address.v6.sin6_port : address.v4.sin_port);
}

int st_socket_peer(union st_address *out, int fd)
{
    socklen_t bytes = sizeof(*out);

    return st_fault_refuses("comm.name") || getpeername(fd, &out->any, &bytes) != 0 ? -errno : 0;
}

/* Small frames go at once, and a machine that vanishes while nothing is said is noticed some day. */
static void set_options(int fd)
{
    const int yes = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
}

int st_socket_accept(int listener)
{
    const int fd = st_fault_refuses("comm.accept") ? -1 : accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0) {
        set_options(fd);
        return fd;
    }
    return errno == EINTR || errno == ECONNABORTED ? -EAGAIN : -errno; /* who came has gone again */
}

/* The outcome of a connection that was begun. */
static int await_connected(int fd, uint64_t until_ns)
{
    struct pollfd poll_out = {.fd = fd, .events = POLLOUT};
    int ready = 0, err = 0;
    socklen_t bytes = sizeof(err);

    while (ready == 0 && st_clock_ns() < until_ns)
        ready = st_socket_poll(&poll_out, 1, until_ns);
    if (ready <= 0)
        return ready < 0 ? ready : -ETIMEDOUT;
    if (st_fault_refuses("comm.connected") || getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &bytes) != 0)
        return -errno;
    return -err;
}

int st_socket_connect(const union st_address *address, uint64_t until_ns)
{
    int fd = new_socket(address->any.sa_family), err = 0;

    if (fd < 0)
        return fd;
    set_options(fd);
    if (st_fault_refuses("comm.connect") || connect(fd, &address->any, address_bytes(address)) != 0)
        err = errno == EINPROGRESS || errno == EINTR ? await_connected(fd, until_ns) : -errno;
    if (err == 0)
        return fd;
    close(fd);
    return err;
}

/* --- bytes --- */

static int64_t outcome(ssize_t n)
{
    if (n >= 0)
        return n;
    return errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN : -errno;
}

int64_t st_socket_send(int fd, const struct iovec *parts, uint32_t count)
{
    const struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};

    return outcome(st_fault_refuses("comm.send") ? -1 : sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

int64_t st_socket_receive(int fd, const struct iovec *parts, uint32_t count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};

    return outcome(st_fault_refuses("comm.receive") ? -1 : recvmsg(fd, &message, MSG_DONTWAIT));
}

union descriptor_space {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
};

int st_socket_send_descriptor(int fd, const void *data, uint32_t bytes, int descriptor)
{
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    union descriptor_space space = {.bytes = {0}};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof(space.bytes)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int64_t n;

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
    n = outcome(st_fault_refuses("comm.send") ? -1 : sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
    return n == bytes ? 0 : n < 0 ? (int)n : -EIO;
}

int st_socket_receive_descriptor(int fd, void *data, uint32_t bytes, int *descriptor, uint64_t until_ns)
{
    struct pollfd polls = {.fd = fd, .events = POLLIN};
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    union descriptor_space space;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof(space.bytes)};
    const struct cmsghdr *head;
    int ready = 0;
    int64_t n;

    *descriptor = -1;
    while (ready == 0 && st_clock_ns() < until_ns)
        ready = st_socket_poll(&polls, 1, until_ns);
    if (ready <= 0)
        return ready < 0 ? ready : -ETIMEDOUT;
    n = outcome(st_fault_refuses("comm.receive") ? -1 : recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    if (n < 0)
        return (int)n;
    head = CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(descriptor, CMSG_DATA(head), sizeof(int));
    return n == bytes ? 0 : -EPROTO;
}

int st_socket_poll(struct pollfd *polls, uint32_t count, uint64_t until_ns)
{
    const uint64_t now_ns = st_clock_ns(), left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    const uint64_t wait_ns = left_ns < TICK_NS ? left_ns : TICK_NS;
    const int ready =
        st_fault_refuses("comm.poll") ? -1 : poll(polls, count, (int)((wait_ns + 999999) / 1000000)); /* never before until_ns */

    return ready >= 0 ? ready : errno == EINTR ? 0 : -errno;
}

/* Sends or receives until nothing is left. */
static int all_of(int fd, void *data, uint64_t bytes, uint64_t until_ns, bool sends)
{
    struct pollfd polls = {.fd = fd, .events = sends ? POLLOUT : POLLIN};
    uint64_t at = 0;

    while (at < bytes) {
        const struct iovec part = {.iov_base = (char *)data + at, .iov_len = bytes - at};
        const int64_t n = sends ? st_socket_send(fd, &part, 1) : st_socket_receive(fd, &part, 1);
        int ready;

        if (n > 0)
            at += (uint64_t)n;
        else if (n != -EAGAIN)
            return n == 0 ? -ECONNRESET : (int)n;
        else if ((ready = st_socket_poll(&polls, 1, until_ns)) < 0)
            return ready;
        else if (ready == 0 && st_clock_ns() >= until_ns)
            return -ETIMEDOUT;
    }
    return 0;
}

int st_socket_send_all(int fd, const void *data, uint64_t bytes, uint64_t until_ns)
{
    return all_of(fd, (void *)data, bytes, until_ns, true);
}

int st_socket_receive_all(int fd, void *data, uint64_t bytes, uint64_t until_ns)
{
    return all_of(fd, data, bytes, until_ns, false);
}

void st_socket_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* --- addresses --- */

bool st_address_is_loopback(const union st_address *address)
{
    if (address->any.sa_family == AF_INET)
        return ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
    if (IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr))
        return address->v6.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
}

/* An IPv4 address that an IPv6 socket saw is one of IPv4: the rank that connects may have no IPv6. */
void st_address_to_place(struct st_place *place, const union st_address *address)
{
    const struct in6_addr *v6 = &address->v6.sin6_addr;

    memset(place->address, 0, sizeof(place->address));
    place->scope = 0;
    place->family = 4;
    if (address->any.sa_family == AF_INET) {
        memcpy(place->address, &address->v4.sin_addr, 4);
    } else if (IN6_IS_ADDR_V4MAPPED(v6)) {
        memcpy(place->address, &v6->s6_addr[12], 4);
    } else {
        place->family = 6;
        place->scope = address->v6.sin6_scope_id;
        memcpy(place->address, v6, 16);
    }
}

union st_address st_address_of_place(const struct st_place *place)
{
    union st_address address;

    memset(&address, 0, sizeof(address));
    if (place->family == 4) {
        address.v4.sin_family = AF_INET;
        address.v4.sin_port = htons(place->port);
        memcpy(&address.v4.sin_addr, place->address, 4);
    } else {
        address.v6.sin6_family = AF_INET6;
        address.v6.sin6_port = htons(place->port);
        address.v6.sin6_scope_id = place->scope;
        memcpy(&address.v6.sin6_addr, place->address, 16);
    }
    return address;
}
