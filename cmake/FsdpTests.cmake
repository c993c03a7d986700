# What ctest is to know of tests beside their commands.

# Most tests wait most of the time, for ranks, timeouts and other threads, so the presets let ctest run six at a time; of
# those that compute all the time, two.
set(FSDP_BUSY_TEST 3)
# COST of those that take longest: they begin first, so that no core is idle while one of them is the last to end.
set(FSDP_LONG_TEST 100)

# fsdp_extended_tests(NAMES...): tests of this folder that scripts/test leaves to `scripts/test --all`, and so to continuous
# integration, because they take long and what they find is rarely found by no other.
function(fsdp_extended_tests)
  set_property(TEST ${ARGN} APPEND PROPERTY LABELS extended)
endfunction()
