#pragma once
/// \file
/// The JSON of a safetensors header, read in one pass without a tree: what does not belong there ends the reading.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/dtype.h"

namespace fsdp::state {

/// One tensor: its bytes are [begin, end) of the data that follows the header.
struct Entry {
  std::string name;
  Dtype dtype = Dtype::kFloat32;
  std::vector<int64_t> sizes;
  uint64_t begin = 0, end = 0;
  uint64_t bytes() const { return end - begin; }
};

struct Header {
  /// By where they lie. The data has neither gaps nor bytes that belong to two.
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr size_t kMaxDims = 64;

/// Entries as the text has them, in its order; names and fields are different. Throws FormatError with the place.
Header header_in_json(std::string_view json, const std::string& path);

}  // namespace fsdp::state
