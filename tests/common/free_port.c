/* free_port.c - see free_port.h. */
#include "tests/common/free_port.h"
#include "tests/common/test.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

uint16_t free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, length), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    close(fd);
    return ntohs(address.sin_port);
}
