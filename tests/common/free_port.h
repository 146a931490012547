/* tests/common/free_port.h - a port for ranks that meet within a test. */
#ifndef TESTS_COMMON_FREE_PORT_H
#define TESTS_COMMON_FREE_PORT_H

#include <stdint.h>

/** A port of which the ones behind it are most likely free: the system has just given it out.  Fails the test otherwise. */
uint16_t free_port(void);

#endif
