/* tests/api/test_losses.c - what a run remembers of its losses. */
#include "run/losses.h"
#include "tests/common/test.h"

#include <math.h>
#include <string.h>

TEST(the_mean_is_of_twenty)
{
    struct st_losses l = {0};

    assert_true(isnan(st_losses_mean(&l, (double)NAN)));
    assert_true(st_losses_mean(&l, 3) == 3);
    assert_true(st_losses_mean(&l, (double)INFINITY) == 3);
    assert_true(st_losses_mean(&l, 5) == 4);
    for (int i = 0; i < 19; i++)
        (void)st_losses_mean(&l, 1);
    assert_true(st_losses_mean(&l, 21) == 2); /* nineteen of 1 */
}

static void begin(struct st_evals *e, uint32_t keep, uint64_t patience)
{
    st_evals_begin(e, keep, patience, NULL);
}

TEST(patience_counts_what_is_not_lower)
{
    struct st_evals e;

    begin(&e, 0, 2);
    assert_false(st_evals_take(&e, 2, 5)); /* none are kept */
    assert_false(st_evals_take(&e, 4, 5)); /* as low is not lower */
    assert_false(st_evals_stop(&e));
    assert_false(st_evals_take(&e, 4, 5)); /* the same evaluation */
    assert_false(st_evals_stop(&e));
    assert_false(st_evals_take(&e, 6, 4));
    assert_false(st_evals_take(&e, 8, (double)NAN));
    assert_false(st_evals_has(&e, 8));
    assert_false(st_evals_stop(&e));
    assert_false(st_evals_take(&e, 10, 4.5));
    assert_true(st_evals_stop(&e));
    assert_true(st_evals_has(&e, 10) && !st_evals_has(&e, 6));
    assert_true(e.best == 4 && e.best_step == 6 && e.last == 4.5 && e.last_step == 10);
}

TEST(the_lowest_are_known)
{
    static const double losses[] = {5, 6, 7, 4, 6, 3, 5};
    static const bool among[] = {true, true, false, true, false, true, false};
    struct st_evals e;

    begin(&e, 2, 0);
    for (uint64_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++)
        assert_int_equal(st_evals_take(&e, i + 1, losses[i]), among[i]);
    assert_true(e.lowest_count == 2 && e.lowest[0] == 3 && e.lowest[1] == 4);
    assert_false(st_evals_stop(&e));
}

/* A run that goes on decides as if it had never ended. */
TEST(a_note_is_all_of_it)
{
    static const char *const wrong[] = {"",
                                        "evals 2 1 0 1",
                                        "evals 2 9 1 0 2 4014000000000000 2 4014000000000000 99",
                                        "evals 2 9 1 0 2 4014000000000000 2 4014000000000000 1",
                                        "evals 1 9 1 0 2 4014000000000000 2 4014000000000000 0",
                                        "other"};
    char note[ST_EVALS_NOTE_MAX], again[ST_EVALS_NOTE_MAX];
    struct st_evals e, f;

    begin(&e, ST_LOWEST_MAX, 3);
    st_evals_note(&e, note);
    assert_string_equal(note, "");
    for (uint64_t i = 1; i <= 40; i++)
        (void)st_evals_take(&e, i * 10, 3 + sin((double)i));
    assert_true(st_evals_over(&e, 77) && st_evals_over(&e, 77));
    st_evals_note(&e, note);
    assert_true(strlen(note) < sizeof(note) - 1);
    st_evals_begin(&f, ST_LOWEST_MAX, 3, note);
    st_evals_note(&f, again);
    assert_string_equal(note, again);
    assert_int_equal(st_evals_stop(&f), st_evals_stop(&e));
    assert_false(st_evals_over(&f, 78));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        st_evals_begin(&f, 2, 3, wrong[i]);
        assert_true(f.count == 0 && f.keep == 2 && f.patience == 3 && isnan(f.best));
    }
}

/* With fewer to keep than before, the lowest of them. */
TEST(fewer_may_be_kept)
{
    char note[ST_EVALS_NOTE_MAX];
    struct st_evals e;

    begin(&e, 3, 0);
    for (uint64_t i = 1; i <= 3; i++)
        (void)st_evals_take(&e, i, 10 - (double)i);
    st_evals_note(&e, note);
    st_evals_begin(&e, 1, 0, note);
    assert_false(st_evals_take(&e, 4, 8));
    assert_true(st_evals_take(&e, 5, 6));
    assert_true(e.lowest[0] == 6);
}
