#pragma once
/// \file
/// What a run computed, as numbers that processes can hand each other and that can be compared.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fsdp::test::fuzz {

/// A value of one rank: whole, or some rows of one that the unsharded run has whole.
struct Value {
  int statement = 0;
  int item = 0;  ///< of the statement's values of one rank, in their order
  int rank = 0;
  bool is_defined = true;
  double tolerance = 0;  ///< relative to its largest number; 0: the same bits. Filled in by the unsharded run
  bool is_rows = false;
  int64_t first = 0, rows = 0;  ///< of is_rows in the sharded run
  int64_t all_rows = 0;         ///< of is_rows
  std::vector<double> numbers = {};
};

/// `tensor` of a floating dtype; undefined is a value too.
Value value_of(const at::Tensor& tensor);

/// A stretch of memory into which values are written one after another, and read again by another process.
class ValueWriter {
 public:
  explicit ValueWriter(std::span<std::byte> memory) : memory_(memory) {}
  /// Throws Error if there is no room left.
  void write(const Value& value);
  size_t bytes() const { return used_; }

 private:
  void put(const void* data, size_t bytes);
  const std::span<std::byte> memory_;
  size_t used_ = 0;
};

std::vector<Value> read_values(std::span<const std::byte> memory);

}  // namespace fsdp::test::fuzz
