/* tests/model/test_comma.c - templates and the names of drives, in a program whose locale has a decimal comma. */
#include "offload/machine/hardware.h"
#include "offload/machine/machine.h"
#include "tests/common/comma.h"
#include "tests/common/renders.h"
#include "tests/common/test.h"

TEST(a_template_prints_as_python)
{
    assert_renders_alone("{{ 0.5 }} {{ 1e20 }} {{ '2.5e1' | int }} {{ '7.9' | int }} {{ 1.25 + 1 }}", "0.5 1e+20 25 7 2.25");
}

TEST(a_drive_is_as_fast_as_it_is_named)
{
    static const char *const drives[] = {"7.5GB/s:2TB"};
    const struct st_hardware_choice choice = {.gpu = "4090", .ram = "64GB", .drives = drives, .drive_count = 1};
    struct st_hardware h;
    struct st_machine m;

    assert_ok(st_hardware_parse(&h, &choice));
    st_hardware_machine(&m, &h);
    assert_true(m.rates.read == 7.5e9);
}

TEST_MAIN(argc, argv)
{
    return comma_result(test_run(comma_begin, comma_end));
}
