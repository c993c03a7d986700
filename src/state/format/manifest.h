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

/// Rows [first_row, first_row + rows) of a tensor: the entry of the tensor's name in a file. A tensor without
/// dimensions has one row.
struct TensorPart {
  std::string file;
  int64_t first_row = 0, rows = 0;
  /// Of each started chunk of its bytes.
  std::vector<uint64_t> checksums;
};

struct TensorRecord {
  Dtype dtype = Dtype::kFloat32;
  /// Of the whole tensor.
  std::vector<int64_t> sizes;
  /// In the order of rows, which they have each once.
  std::vector<TensorPart> parts;

  int64_t rows() const { return sizes.empty() ? 1 : sizes[0]; }
  /// Of so many rows of it, as its parts' entries have them.
  std::vector<int64_t> sizes_of(int64_t row_count) const;
  uint64_t bytes_per_row() const;
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
/// lie in the folder itself, every row in one part.
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
