#include "state/format/checkpoint_reader.h"

#include <algorithm>

#include "state/format/format_error.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

// Returns the file's entry for a part. Throws FormatError if the entry differs from the manifest.
const Entry& entry_of(const SafetensorsFile& file, const std::string& name, const TensorRecord& tensor,
                      const TensorPart& part) {
  const auto& entry = file.entry(name);
  if (entry.dtype != tensor.dtype || entry.sizes != part.sizes)
    throw FormatError(file.path() + ": entry '" + name + "': expected " + std::string(name_of(tensor.dtype)) + " " +
                      text_of(part.sizes) + ", found " + std::string(name_of(entry.dtype)) + " " +
                      text_of(entry.sizes) + ". The file belongs to a different checkpoint or is damaged");
  return entry;
}

// Reads all parts of a tensor in pieces of at most 16 MiB, and records one problem for each damaged part.
void check_tensor(CheckpointReader& reader, const std::string& name, const TensorRecord& tensor,
                  const std::function<void(uint64_t)>& on_read, std::vector<std::string>& problems) {
  std::vector<std::byte> buffer;
  const auto element_bytes = bytes_of(tensor.dtype);
  const auto step = static_cast<int64_t>(16 * kChunkBytes / element_bytes);
  for (const auto& part : tensor.parts) try {
      const auto [first, count] = tensor.elements_of(part);
      for (int64_t done = 0; done < count; done += step) {
        const auto some = std::min(step, count - done);
        buffer.resize(static_cast<uint64_t>(some) * element_bytes);
        reader.read(name, tensor, {first + done, some}, buffer);
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

void CheckpointReader::read(const std::string& name, const TensorRecord& tensor, ElementRange elements,
                            std::span<std::byte> out) {
  const auto element_bytes = bytes_of(tensor.dtype);
  const auto [first, count] = elements;
  if (first < 0 || count < 0 || count > tensor.numel() || first > tensor.numel() - count ||
      out.size() != static_cast<uint64_t>(count) * element_bytes)
    throw FormatError(path_ + ": tensor '" + name + "' of sizes " + text_of(tensor.sizes) + ": cannot read " +
                      std::to_string(count) + " elements, beginning with element " + std::to_string(first) +
                      ", into a buffer of " + std::to_string(out.size()) + " bytes");
  for (const auto& part : tensor.parts) {
    const auto of_part = tensor.elements_of(part), common = overlap(elements, of_part);
    if (common.count == 0) continue;
    const auto& file = file_of(part);
    file.read_checked(entry_of(file, name, tensor, part), part.checksums,
                      static_cast<uint64_t>(common.first - of_part.first) * element_bytes,
                      out.subspan(static_cast<uint64_t>(common.first - first) * element_bytes,
                                  static_cast<uint64_t>(common.count) * element_bytes));
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
    if (!problems.empty()) return problems;  // reading on would report each tensor of these files too
    for (const auto* records : {&reader.manifest().model, &reader.manifest().training})
      for (const auto& [name, tensor] : *records) check_tensor(reader, name, tensor, on_read, problems);
  } catch (const FileError& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace fsdp::state
