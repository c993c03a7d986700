#pragma once
/// \file
/// What a checkpoint consists of: `manifest.json`, which is written last.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/dtype.h"

namespace fsdp::state {

/// Elements [first, first + count) of a tensor, in row-major order.
struct ElementRange {
  int64_t first = 0, count = 0;
};
/// The elements that both boxes have; none if they do not meet.
ElementRange overlap(ElementRange a, ElementRange b);

/// Elements [offsets[d], offsets[d] + sizes[d]) of each dim d of a tensor: the entry of the tensor's name in a file.
/// They are consecutive in row-major order.
struct TensorPart {
  std::string file;
  std::vector<int64_t> offsets, sizes;
  /// Of each started chunk of its bytes.
  std::vector<uint64_t> checksums;
};

struct TensorRecord {
  Dtype dtype = Dtype::kFloat32;
  /// Of the whole tensor.
  std::vector<int64_t> sizes;
  /// The parts in the order of their elements; each element is in exactly one part.
  std::vector<TensorPart> parts;

  int64_t numel() const;
  /// The elements that one of its parts has.
  ElementRange elements_of(const TensorPart& part) const;
};
using TensorRecords = std::map<std::string, TensorRecord>;

struct FileRecord {
  uint64_t bytes = 0, header_checksum = 0;
  /// Who wrote it, where hosts have disks of their own; empty: all files are on one disk.
  std::string host = {};
};

struct Manifest {
  int64_t step = 0;
  /// Of the program that wrote it.
  int64_t world_size = 0;
  /// By name of what it was written with.
  std::map<std::string, std::string> versions = {};
  std::map<std::string, FileRecord> files = {};
  /// Parameters and buffers by the module's names; what else training needs.
  TensorRecords model = {}, training = {};
  /// JSON: an object each, of what is no tensor. `extra` is the user's.
  std::string optimizer = "{}", extra = "{}";
  /// By name, JSON too: the user's, of what else has a state.
  std::map<std::string, std::string> states = {};
};

/// The file's text. Throws FormatError if a part of it is not JSON, or has more than 100 lists and objects in each
/// other.
std::string manifest_text(Manifest manifest);
/// Throws FormatError unless the text is as it was written: its own checksum, the version of the format, files that
/// lie in the folder itself, every element in one part.
Manifest parse_manifest(std::string_view text, const std::string& path);

/// The same without the last of these: what one rank wrote.
Manifest parse_manifest_part(std::string_view text, const std::string& path);

/// The manifest of what several ranks wrote.
class JoinedManifest {
 public:
  /// Adds what one rank wrote: a text of manifest_text. `whose` stands in errors. What all ranks have beside files,
  /// rows and the optimizer's fields is that of the first one. Throws FormatError, also if two say something else of a
  /// tensor.
  void add(std::string_view text, const std::string& whose);
  /// Gives the manifest of all that was added, at least one text.
  Manifest take();

 private:
  std::optional<Manifest> all_;
  std::vector<std::string> optimizers_;
};

/// JSON objects put together, and the objects in them by their names; of what two have else, the last one counts.
std::string joined_objects(const std::vector<std::string>& objects);

/// Whether a name can only mean a file in the folder itself.
bool is_plain_name(std::string_view name);

}  // namespace fsdp::state
