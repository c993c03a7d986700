#pragma once
/// \file
/// `manifest.json`, the table of a checkpoint's contents, which is written last.

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
/// The elements that both ranges contain; its count is 0 if they are disjoint.
ElementRange overlap(ElementRange a, ElementRange b);

/// A part of a tensor in one file: indices [offsets[d], offsets[d] + sizes[d]) of each dim d. The elements are
/// consecutive in row-major order. Its entry in the file has the tensor's name.
struct TensorPart {
  std::string file;
  std::vector<int64_t> offsets, sizes;
  /// One checksum for each chunk of its bytes.
  std::vector<uint64_t> checksums;
};

struct TensorRecord {
  Dtype dtype = Dtype::kFloat32;
  /// Sizes of the whole tensor.
  std::vector<int64_t> sizes;
  /// The parts in the order of their elements. Each element is in exactly one part.
  std::vector<TensorPart> parts;

  int64_t numel() const;
  /// The elements of one of its parts.
  ElementRange elements_of(const TensorPart& part) const;
};
using TensorRecords = std::map<std::string, TensorRecord>;

struct FileRecord {
  uint64_t bytes = 0, header_checksum = 0;
  /// The host that wrote it, if hosts have disks of their own; empty: all files are on one disk.
  std::string host = {};
};

struct Manifest {
  int64_t step = 0;
  /// World size of the program that wrote the checkpoint.
  int64_t world_size = 0;
  /// Versions of the libraries that wrote it, by name.
  std::map<std::string, std::string> versions = {};
  std::map<std::string, FileRecord> files = {};
  /// Parameters and buffers, by the module's names, and other tensors that training needs.
  TensorRecords model = {}, training = {};
  /// JSON objects: the optimizer's numbers, and the user's own data.
  std::string optimizer = "{}", extra = "{}";
  /// States by name, as JSON: the user's, a GradScaler's and a Trainer's.
  std::map<std::string, std::string> states = {};
};

/// The text of the file. Throws FormatError if a part of it is not valid JSON, or has more than 100 nested lists and
/// objects.
std::string manifest_text(Manifest manifest);
/// Parses a manifest. Throws FormatError unless its checksum and format version match, all files are in the folder
/// itself, and every element is in exactly one part.
Manifest parse_manifest(std::string_view text, const std::string& path);

/// Parses the manifest part of one rank, in which elements may be missing.
Manifest parse_manifest_part(std::string_view text, const std::string& path);

/// Joins the manifest parts of several ranks.
class JoinedManifest {
 public:
  /// Adds the part of one rank, a text of manifest_text. `whose` is for error messages. Apart from files, rows and the
  /// optimizer's fields, the first part's contents are used. Throws FormatError, also if two parts disagree about a
  /// tensor.
  void add(std::string_view text, const std::string& whose);
  /// Returns the joined manifest. At least one part must have been added.
  Manifest take();

 private:
  std::optional<Manifest> all_;
  std::vector<std::string> optimizers_;
};

/// Merges JSON objects recursively; for other values the last one wins.
std::string joined_objects(const std::vector<std::string>& objects);

/// Whether a name can only refer to a file in the folder itself.
bool is_plain_name(std::string_view name);

}  // namespace fsdp::state
