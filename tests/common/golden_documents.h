/* tests/common/golden_documents.h - documents of golden_packed.json, by tools/make_golden_families.py. */
#ifndef TESTS_COMMON_GOLDEN_DOCUMENTS_H
#define TESTS_COMMON_GOLDEN_DOCUMENTS_H

#include "core/json/json.h"
#include "tests/common/test.h"

/** Windows of `seq` tokens become documents of the lengths in `documents`, from its first list on: each token's place in its
 *  document, and no target for the last.  Returns how many targets are left. */
static inline uint32_t golden_documents(const st_json *documents, uint32_t windows, uint32_t seq, int32_t *targets,
                                        int32_t *positions)
{
    const st_json *window = st_json_first(documents);
    uint32_t count = 0, at = 0;

    for (uint32_t w = 0; w < windows; w++, window = st_json_next(window)) {
        for (const st_json *n = st_json_first(window); n != NULL; n = st_json_next(n)) {
            uint64_t length;

            assert_true(st_json_u64(n, &length) && length > 0 && at + length <= (w + 1) * seq);
            for (uint32_t i = 0; i < length; i++)
                positions[at + i] = (int32_t)i;
            at += (uint32_t)length;
            targets[at - 1] = -1;
            count += (uint32_t)length - 1;
        }
        assert_int_equal(at, (w + 1) * seq);
    }
    return count;
}

#endif
