/* tests/text/text_fixture.h - what the tests of text share. */
#ifndef TEXT_FIXTURE_H
#define TEXT_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include <string.h>

/* A turn of a conversation as ShareGPT writes it. */
#define TURN(who, what) "{\"from\": \"" who "\", \"value\": \"" what "\"}"

#endif
