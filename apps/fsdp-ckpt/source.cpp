#include "source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "state/format/sizes.h"

namespace ckpt {
namespace {

using namespace fsdp::state;

class CheckpointSource : public Source {
 public:
  explicit CheckpointSource(const std::string& path) : reader_(path) {}
  const Manifest& manifest() const override { return reader_.manifest(); }
  void read_rows(const std::string& name, const TensorRecord& tensor, int64_t first_row, int64_t rows,
                 std::span<std::byte> out) override {
    reader_.read_rows(name, tensor, first_row, rows, out);
  }

 private:
  CheckpointReader reader_;
};

class FileSource : public Source {
 public:
  explicit FileSource(const std::string& path) : file_(path) {
    for (const auto& entry : file_.header().entries) manifest_.model[entry.name] = {entry.dtype, entry.sizes, {}};
  }
  const Manifest& manifest() const override { return manifest_; }
  void read_rows(const std::string& name, const TensorRecord& tensor, int64_t first_row, int64_t /*rows*/,
                 std::span<std::byte> out) override {
    file_.read(file_.entry(name), static_cast<uint64_t>(first_row) * tensor.bytes_per_row(), out);
  }

 private:
  SafetensorsFile file_;
  Manifest manifest_;
};

}  // namespace

std::unique_ptr<Source> open_source(const std::string& path) {
  if (std::filesystem::is_regular_file(path)) return std::make_unique<FileSource>(path);
  return std::make_unique<CheckpointSource>(path);
}

uint64_t bytes_in(const TensorRecord& tensor) { return bytes_of(tensor.dtype, tensor.sizes).value_or(0); }

uint64_t bytes_in(const TensorRecords& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += bytes_in(tensor);
  return bytes;
}

void for_each_piece(Source& source, const std::string& name, const TensorRecord& tensor, int64_t first_row,
                    int64_t rows, const std::function<void(std::span<const std::byte>)>& act) {
  const auto bytes_per_row = tensor.bytes_per_row();
  if (bytes_per_row == 0) return;  // of any number of rows
  const auto step =
      static_cast<int64_t>(std::max<uint64_t>(16 * kChunkBytes / std::max<uint64_t>(bytes_per_row, 1), 1));
  std::vector<std::byte> bytes;
  for (int64_t row = 0; row < rows; row += step) {
    const auto some = std::min(step, rows - row);
    bytes.resize(static_cast<uint64_t>(some) * bytes_per_row);
    source.read_rows(name, tensor, first_row + row, some, bytes);
    act(bytes);
  }
}

}  // namespace ckpt
