/* test_faults - an engine in a failing world: an error is reported once, with its cause, and nothing is left behind.
 *
 * Every I/O method; fail the Nth passage of any fault site for N = 0, 1, 2 ... until a whole run passes none.  A run that ends
 * well must have the right bits. */
#include "sound.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "offload/engine/engine_internal.h"
#include "tests/common/sample.h"

#include <errno.h>

TEST(every_failed_completion_is_reported)
{
    sound_completions(false, sample_is_all() ? 40 : 8);
}

/* A transient refusal and a short transfer are nobody's business but the method's. */
TEST(benign_faults_are_absorbed)
{
    static const int64_t results[] = {-EAGAIN, 4096};

    for (size_t i = 0; i < SOUND_METHODS; i++) {
        struct sound s;

        sound_begin_with(&s, sound_methods[i], false);
        for (size_t r = 0; r < 2; r++) {
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 11, .count = 5, .result = results[r]});
            sound_again(&s);
            assert_int_equal(st_fault_disarm(), 5);
        }
        sound_end(&s);
    }
}

/* One flipped byte in any extent read during a run is found by its checksum, before it is used. */
TEST(a_flipped_byte_is_found)
{
    assert_true(sound_flips(false) > 0);
}

TEST(every_single_failure_is_clean)
{
    sound_single_failures(false);
}

/* A device that refuses one call: no run ends well, whichever call it was. */
TEST(every_call_of_the_device_is_heard)
{
    struct rig_cell cell = sound_cell("fake", false);
    const struct sound_walk walk = {
        .site = "device.call", .result = -EIO, .dense = sample_is_all() ? UINT32_MAX : 8, .expected = STRATA_E_IO, .fatal = true};
    struct sound s;

    cell.timed = true;
    sound_begin(&s, &cell, SOUND_STEPS);
    print_message("%u calls refused\n", sound_walk(&s, &walk));
    sound_end(&s);
}

/* A transfer that the swap refuses at once is not under way: nobody waits for it, and the engine goes on. */
TEST(a_refused_transfer_is_not_waited_for)
{
    char weights[2][33], states[2][33];
    struct st_engine_io io;
    struct rig_engine rig;
    struct sound s;

    sound_begin_with(&s, "fake", false);
    assert_int_equal(rig_engine_start(&rig, s.model, s.plan, &s.cell, s.dir), STRATA_OK);
    assert_int_equal(st_engine_digest(rig.engine, weights[0], states[0]), STRATA_OK);
    assert_int_equal(st_engine_volume_start(rig.engine, &io, ST_IO_READ, UINT32_MAX, 0, NULL, 0, false), STRATA_E_INVAL);
    assert_int_equal(st_engine_drain(rig.engine), STRATA_OK);
    assert_int_equal(st_engine_digest(rig.engine, weights[1], states[1]), STRATA_OK);
    assert_string_equal(weights[0], weights[1]);
    assert_string_equal(states[0], states[1]);
    rig_engine_stop(&rig);
    sound_end(&s);
}
