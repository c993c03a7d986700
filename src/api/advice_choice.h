#pragma once
/// \file
/// Which strategy serves a model better: a decision apart from what is measured.

#include <fsdp/advice.h>

#include <cstdint>

namespace fsdp {

/// Of the rank that holds most.
struct Measured {
  Strategy strategy = Strategy::kFullShard;
  double waiting_share = 0;
  /// Of all whole parameters, and how many ranks share them out.
  int64_t parameter_bytes = 0, shards = 1;
  /// At most.
  int64_t rows = 0, whole = 0, gradient = 0, optimizer = 0;
  int64_t spare_bytes = 0;
};

/// Pure.
Advice choose_advice(const Measured& measured);

}  // namespace fsdp
