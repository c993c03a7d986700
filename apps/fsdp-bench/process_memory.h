#pragma once
/// \file
/// Memory of this process, as the system counts it.

namespace bench {

/// Returns the proportional set size in MiB, in which a page that n processes share counts as 1/n of a page.
double pss_mb();

/// Returns the largest resident set so far in MiB, in which a page that n processes share counts fully.
double peak_resident_mb();

}  // namespace bench
