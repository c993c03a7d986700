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
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements,
            std::span<std::byte> out) override {
    reader_.read(name, tensor, elements, out);
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
  void read(const std::string& name, const TensorRecord& tensor, ElementRange elements,
            std::span<std::byte> out) override {
    file_.read(file_.entry(name), static_cast<uint64_t>(elements.first) * bytes_of(tensor.dtype), out);
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

void for_each_piece(Source& source, const std::string& name, const TensorRecord& tensor, ElementRange elements,
                    const std::function<void(std::span<const std::byte>)>& act) {
  const auto step = static_cast<int64_t>(16 * kChunkBytes / bytes_of(tensor.dtype));
  std::vector<std::byte> bytes;
  for (int64_t done = 0; done < elements.count; done += step) {
    const auto some = std::min(step, elements.count - done);
    bytes.resize(static_cast<uint64_t>(some) * bytes_of(tensor.dtype));
    source.read(name, tensor, {elements.first + done, some}, bytes);
    act(bytes);
  }
}

}  // namespace ckpt
