#pragma once
/// \file
/// Parser of the JSON in a safetensors header. It works in one pass without building a tree of values, and stops at the
/// first invalid element.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/dtype.h"

namespace fsdp::state {

/// One tensor. Its bytes are [begin, end) of the data after the header.
struct Entry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// The contents of a header.
struct Header {
  /// The tensors in the order of their bytes, without gaps or overlaps between them.
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr size_t kMaxDims = 64;

/// Parses a header and returns the entries in the order of the text, without checking their offsets. Throws FormatError
/// for invalid JSON, unknown fields, and names or fields that occur twice.
Header header_in_json(std::string_view json, const std::string& path);

}  // namespace fsdp::state
