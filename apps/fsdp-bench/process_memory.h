#pragma once
/// \file
/// Memory of this process as the system sees it.

namespace bench {

/// Proportional set size in MiB: a page that n processes share counts as 1/n of a page.
double pss_mb();

/// The largest resident set so far, in MiB: a page that n processes share counts in each of them.
double peak_resident_mb();

}  // namespace bench
