#pragma once
/// \file
/// Memory of this process as the system sees it.

namespace bench {

/// Proportional set size in MiB: a page that n processes share counts as 1/n of a page.
double pss_mb();

}  // namespace bench
