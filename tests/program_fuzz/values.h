#pragma once
/// \file
/// Values that a run has computed, as numbers that processes can pass to each other, and the comparison of two runs.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp::test::fuzz {

struct ValueHeader {
  int statement = 0;
  int item = 0;  ///< index among the values that one rank has recorded for the statement
  int rank = 0;
  bool is_defined = true;
  bool is_rows = false;
  double tolerance = 0;  ///< tolerance relative to the largest number, 0 for equal bits; the unsharded run sets it
  int64_t first = 0, count = 0;  ///< range of elements of the whole value, if `is_rows` is true
  size_t numel = 0;
};

/// A value of one rank. It is whole, or it is some rows of a value that the unsharded run has whole.
struct Value : ValueHeader {
  std::vector<double> numbers = {};
};

/// Returns the value of a tensor, which has a floating dtype or is undefined.
Value value_of(const at::Tensor& tensor);

/// Writes the values to memory that another process reads, and returns the number of bytes. Throws Error if there is
/// not enough room.
size_t write_values(const std::vector<Value>& values, std::span<std::byte> memory);
std::vector<Value> read_values(std::span<const std::byte> memory);

enum class Wrong : uint8_t { kValue, kError, kHang, kCrash };

struct Finding {
  Wrong wrong = Wrong::kValue;
  int rank = 0;
  int statement = 0;  ///< number of the statement in the program
  std::string text;
};

/// Compares the values of one rank with those of all ranks, within their tolerances. NaN equals NaN.
std::optional<Finding> compare(int rank, const std::vector<Value>& expected, const std::vector<Value>& found);

}  // namespace fsdp::test::fuzz
