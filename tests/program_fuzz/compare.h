#pragma once
/// \file
/// Whether a rank of a sharded run computed what the unsharded run did.

#include <optional>
#include <string>
#include <vector>

#include "program_fuzz/values.h"

namespace fsdp::test::fuzz {

enum class Wrong : uint8_t { kValue, kError, kHang, kCrash };

struct Finding {
  Wrong wrong = Wrong::kValue;
  int rank = 0;
  int statement = 0;  ///< its number
  std::string text;
};

const char* name_of(Wrong wrong);

/// By the values' tolerances; NaN equals NaN. `found`: those of one rank; `expected`: those of all ranks.
std::optional<Finding> compare(int rank, const std::vector<Value>& expected, const std::vector<Value>& found);

}  // namespace fsdp::test::fuzz
