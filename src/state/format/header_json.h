#pragma once
/// \file
/// Parsing of a safetensors header's JSON in one pass, without a tree; the first invalid element ends it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/dtype.h"

namespace fsdp::state {

/// One tensor, whose bytes are [begin, end) of the data after the header.
struct Entry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;
  uint64_t bytes() const { return end - begin; }
};

struct Header {
  /// In the order of their data, which they cover without gaps or overlaps.
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr size_t kMaxDims = 64;

/// Parses a header; entries are in the order of the text. Names and fields must be unique. Throws FormatError with the
/// position.
Header header_in_json(std::string_view json, const std::string& path);

}  // namespace fsdp::state
