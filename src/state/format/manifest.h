#pragma once
/// \file
/// `manifest.json`, the table of a checkpoint's contents. It is written last.

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
/// Returns the elements that both ranges contain. The count is 0 if the ranges are disjoint.
ElementRange overlap(ElementRange a, ElementRange b);

/// A part of a tensor in one file: indices [offsets[d], offsets[d] + sizes[d]) of each dim d. The elements are
/// consecutive in row-major order. The part's entry in the file has the tensor's name.
struct TensorPart {
  std::string file;
  std::vector<int64_t> offsets, sizes;
  /// One checksum for each chunk (kChunkBytes) of the part's bytes.
  std::vector<uint64_t> checksums;
};

struct TensorRecord {
  Dtype dtype = Dtype::kFloat32;
  /// Sizes of the whole tensor.
  std::vector<int64_t> sizes;
  /// The parts in the order of their elements. Each element is in exactly one part.
  std::vector<TensorPart> parts;

  int64_t numel() const;
  /// Returns the elements of the tensor that `part` contains.
  ElementRange elements_of(const TensorPart& part) const;
};
using TensorRecords = std::map<std::string, TensorRecord>;

struct FileRecord {
  uint64_t bytes = 0, header_checksum = 0;
  /// The host that wrote the file if hosts have disks of their own. Empty if all files are on one disk.
  std::string host = {};
};

struct Manifest {
  int64_t step = 0;
  /// World size of the program that wrote the checkpoint.
  int64_t world_size = 0;
  /// Versions of the libraries that wrote the checkpoint, by the library's name.
  std::map<std::string, std::string> versions = {};
  std::map<std::string, FileRecord> files = {};
  /// `model` has the parameters and buffers under the module's names. `training` has the optimizer's state tensors and
  /// the random states.
  TensorRecords model = {}, training = {};
  /// JSON objects: the optimizer's options and numbers, and the user's own data (SaveOptions::extra).
  std::string optimizer = "{}", extra = "{}";
  /// JSON objects by name: the user's states (SaveOptions::states), and those of a GradScaler and a Trainer.
  std::map<std::string, std::string> states = {};
};

/// Returns the text of manifest.json. Throws FormatError if one of the manifest's JSON strings is not valid JSON, or
/// nests lists and objects more than 100 levels deep.
std::string manifest_text(Manifest manifest);
/// Parses a manifest. Throws FormatError unless the text has the right checksum and a known format version, all files
/// are in the checkpoint's own folder, and every element of a tensor is in exactly one part.
Manifest parse_manifest(std::string_view text, const std::string& path);

/// Parses the manifest part that one rank wrote. Other ranks' elements may be missing in this part.
Manifest parse_manifest_part(std::string_view text, const std::string& path);

/// Joins the manifest parts of several ranks.
class JoinedManifest {
 public:
  /// Adds the part of one rank, as manifest_text returned it. `whose` names the part in error messages. The files, the
  /// rows and the optimizer's fields of all parts are joined; everything else comes from the first part. Throws
  /// FormatError if the text is invalid, or if two parts disagree about a tensor's dtype or sizes.
  void add(std::string_view text, const std::string& whose);
  /// Returns the joined manifest. At least one part must have been added.
  Manifest take();

 private:
  std::optional<Manifest> all_;
  std::vector<std::string> optimizers_;
};

/// Merges JSON objects recursively. If several objects have a value under one key, the last value is taken.
std::string joined_objects(const std::vector<std::string>& objects);

/// Returns true if a name can only refer to a file in the checkpoint's own folder.
bool is_plain_name(std::string_view name);

}  // namespace fsdp::state
