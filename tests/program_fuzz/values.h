#pragma once
/// \file
/// What a run computed, as numbers that processes can hand each other, and whether two runs computed the same.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp::test::fuzz {

struct ValueHeader {
  int statement = 0;
  int item = 0;  ///< of the statement's values of one rank, in their order
  int rank = 0;
  bool is_defined = true;
  bool is_rows = false;
  double tolerance = 0;  ///< relative to its largest number; 0: the same bits. Filled in by the unsharded run
  int64_t first = 0, rows = 0, all_rows = 0;  ///< of is_rows
  size_t numel = 0;
};

/// A value of one rank: whole, or some rows of one that the unsharded run has whole.
struct Value : ValueHeader {
  std::vector<double> numbers = {};
};

/// `tensor` of a floating dtype; undefined is a value too.
Value value_of(const at::Tensor& tensor);

/// Writes the values one after another, for another process to read; returns how many bytes. Throws Error if there is
/// no room.
size_t write_values(const std::vector<Value>& values, std::span<std::byte> memory);
std::vector<Value> read_values(std::span<const std::byte> memory);

enum class Wrong : uint8_t { kValue, kError, kHang, kCrash };

struct Finding {
  Wrong wrong = Wrong::kValue;
  int rank = 0;
  int statement = 0;  ///< its number
  std::string text;
};

/// By the values' tolerances; NaN equals NaN. `found`: those of one rank; `expected`: those of all ranks.
std::optional<Finding> compare(int rank, const std::vector<Value>& expected, const std::vector<Value>& found);

}  // namespace fsdp::test::fuzz
