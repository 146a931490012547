/* offload/comm/comm_socket.h - sockets, each call through a fault site.
 *
 * Every function returns negative errno on failure.  All sockets are closed on exec, do not block, and never raise SIGPIPE. */
#ifndef OFFLOAD_COMM_COMM_SOCKET_H
#define OFFLOAD_COMM_COMM_SOCKET_H

#include "offload/comm/comm_frames.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define ST_LOCAL_NAME_BYTES 16u

union st_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/** A listening socket on all addresses, IPv6 and IPv4 where the machine has both.  @param port  0: any that is free */
int st_socket_listen(uint16_t port);
/** One for processes of this node (AF_UNIX), under a free name in no directory, which goes when the socket does. */
int st_socket_listen_local(char name[ST_LOCAL_NAME_BYTES]);
int st_socket_connect_local(const char *name);
/** The port that a socket is bound to. */
int st_socket_port(int fd);
/** A connection that waits to be taken; -EAGAIN: none.  It has no delays. */
int st_socket_accept(int listener);
/** Waits until st_clock_ns() is until_ns. */
int st_socket_connect(const union st_address *address, uint64_t until_ns);
int st_socket_peer(union st_address *out, int fd);

/** Whatever goes at once: bytes, or -EAGAIN.  0 of a receive: the other side has closed. */
int64_t st_socket_send(int fd, const struct iovec *parts, uint32_t count);
int64_t st_socket_receive(int fd, const struct iovec *parts, uint32_t count);
/** All of it, or -ETIMEDOUT at until_ns, or -ECONNRESET where the other side has closed. */
int st_socket_send_all(int fd, const void *data, uint64_t bytes, uint64_t until_ns);
int st_socket_receive_all(int fd, void *data, uint64_t bytes, uint64_t until_ns);
/** Between processes of one node: bytes that go at once, and a descriptor with them.  Receiving one: *descriptor -1: none came.
 */
int st_socket_send_descriptor(int fd, const void *data, uint32_t bytes, int descriptor);
int st_socket_receive_descriptor(int fd, void *data, uint32_t bytes, int *descriptor, uint64_t until_ns);
/** poll() until until_ns, at most a second: how many are ready, or 0.  An interrupted one is 0. */
struct pollfd;
int st_socket_poll(struct pollfd *polls, uint32_t count, uint64_t until_ns);

void st_socket_close(int *fd); /* and -1; of -1 nothing */

bool st_address_is_loopback(const union st_address *address);
void st_address_to_place(struct st_place *place, const union st_address *address);
union st_address st_address_of_place(const struct st_place *place);

#endif
