/* tests/text/text_fixture.h - what the tests of text share. */
#ifndef TEXT_FIXTURE_H
#define TEXT_FIXTURE_H

#include <stdlib.h>

#include "core/base/error.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include <string.h>

/* A turn of a conversation as ShareGPT writes it. */
#define TURN(who, what) "{\"from\": \"" who "\", \"value\": \"" what "\"}"

#endif
