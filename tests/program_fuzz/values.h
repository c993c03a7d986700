#pragma once
/// \file
/// What a run computed, as numbers that processes can pass to each other, and whether two runs computed the same.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp::test::fuzz {

struct ValueHeader {
  int statement = 0;
  int item = 0;  ///< index among the statement's values of one rank
  int rank = 0;
  bool is_defined = true;
  bool is_rows = false;
  double tolerance = 0;  ///< relative to the largest number; 0: the same bits. The unsharded run fills it in
  int64_t first = 0, count = 0;  ///< if is_rows: which elements of the whole value they are
  size_t numel = 0;
};

/// A value of one rank: a whole value, or some rows of a value that the unsharded run has whole.
struct Value : ValueHeader {
  std::vector<double> numbers = {};
};

/// `tensor` has a floating dtype, or is undefined, which is a value too.
Value value_of(const at::Tensor& tensor);

/// Writes the values one after another for another process to read, and returns the number of bytes. Throws Error if
/// there is not enough room.
size_t write_values(const std::vector<Value>& values, std::span<std::byte> memory);
std::vector<Value> read_values(std::span<const std::byte> memory);

enum class Wrong : uint8_t { kValue, kError, kHang, kCrash };

struct Finding {
  Wrong wrong = Wrong::kValue;
  int rank = 0;
  int statement = 0;  ///< its number in the program
  std::string text;
};

/// Compares by the values' tolerances; NaN equals NaN. `found`: the values of one rank; `expected`: those of all ranks.
std::optional<Finding> compare(int rank, const std::vector<Value>& expected, const std::vector<Value>& found);

}  // namespace fsdp::test::fuzz
