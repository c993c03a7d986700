#include "state/format/checkpoint_reader.h"

#include <algorithm>

#include "state/format/format_error.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

// The part's entry, which is what the manifest says.
const Entry& entry_of(const SafetensorsFile& file, const std::string& name, const TensorRecord& tensor,
                      const TensorPart& part) {
  const auto& entry = file.entry(name);
  const auto expected = tensor.sizes_of(part.rows);
  if (entry.dtype != tensor.dtype || entry.sizes != expected)
    throw FormatError(file.path() + ": entry '" + name + "': expected " + std::string(name_of(tensor.dtype)) + " " +
                      text_of(expected) + ", found " + std::string(name_of(entry.dtype)) + " " + text_of(entry.sizes) +
                      ". It belongs to another checkpoint or is damaged");
  return entry;
}

// Every part of a tensor, in pieces of a bounded size; a problem for each part that is wrong.
void check_tensor(CheckpointReader& reader, const std::string& name, const TensorRecord& tensor,
                  const std::function<void(uint64_t)>& on_read, std::vector<std::string>& problems) {
  std::vector<std::byte> buffer;
  const auto bytes_per_row = tensor.bytes_per_row();
  if (bytes_per_row == 0) return;  // of any number of rows
  const auto step =
      static_cast<int64_t>(std::max<uint64_t>(16 * kChunkBytes / std::max<uint64_t>(bytes_per_row, 1), 1));
  for (const auto& part : tensor.parts) try {
      for (int64_t row = 0; row < part.rows; row += step) {
        const auto rows = std::min(step, part.rows - row);
        buffer.resize(static_cast<uint64_t>(rows) * bytes_per_row);
        reader.read_rows(name, tensor, part.first_row + row, rows, buffer);
        on_read(buffer.size());
      }
    } catch (const FileError& error) {
      problems.emplace_back(error.what());
    }
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& path)
    : path_(find_checkpoint(path)), manifest_(read_manifest(path_)) {}

const SafetensorsFile& CheckpointReader::file_of(const TensorPart& part) {
  auto found = files_.find(part.file);
  if (found == files_.end()) found = files_.emplace(part.file, open_file_of(manifest_, path_, part.file)).first;
  return found->second;
}

void CheckpointReader::read_rows(const std::string& name, const TensorRecord& tensor, int64_t first_row, int64_t rows,
                                 std::span<std::byte> out) {
  const auto bytes_per_row = tensor.bytes_per_row();
  if (first_row < 0 || rows < 0 || first_row > tensor.rows() - rows ||
      out.size() != static_cast<uint64_t>(rows) * bytes_per_row)
    throw FormatError(path_ + ": tensor '" + name + "' of sizes " + text_of(tensor.sizes) +
                      ": expected rows of it, found " + std::to_string(rows) + " rows from " +
                      std::to_string(first_row) + " on in " + std::to_string(out.size()) + " bytes");
  for (const auto& part : tensor.parts) {
    const auto begin = std::max(first_row, part.first_row);
    const auto end = std::min(first_row + rows, part.first_row + part.rows);
    if (begin >= end) continue;
    const auto& file = file_of(part);
    file.read_checked(entry_of(file, name, tensor, part), part.checksums,
                      static_cast<uint64_t>(begin - part.first_row) * bytes_per_row,
                      out.subspan(static_cast<uint64_t>(begin - first_row) * bytes_per_row,
                                  static_cast<uint64_t>(end - begin) * bytes_per_row));
  }
}

std::vector<std::string> problems_of(const std::string& checkpoint, const std::function<void(uint64_t)>& on_read) {
  std::vector<std::string> problems;
  try {
    CheckpointReader reader(checkpoint);
    for (const auto& [name, file] : reader.manifest().files) try {
        open_file_of(reader.manifest(), reader.path(), name);
      } catch (const FileError& error) {
        problems.emplace_back(error.what());
      }
    if (!problems.empty()) return problems;  // else each tensor of these files would say so again
    for (const auto* records : {&reader.manifest().model, &reader.manifest().training})
      for (const auto& [name, tensor] : *records) check_tensor(reader, name, tensor, on_read, problems);
  } catch (const FileError& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace fsdp::state
