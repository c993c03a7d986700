#include "saving.h"

#include <caffe2/serialize/inline_container.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/torch.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace mnist {
namespace {

using Values = c10::Dict<std::string, torch::Tensor>;

// What Python's torch.save makes of a dictionary. torch::pickle_save would write the dictionary's type beside it, which
// Python's torch.load refuses unless it is told to trust the file.
std::string archive_of(const Values& values) {
  std::string pickled, archive;
  torch::jit::Pickler pickler([&](const char* bytes, size_t count) { pickled.append(bytes, count); },
                              /*tensor_table=*/nullptr, /*type_renamer=*/nullptr, /*memoized_class_types=*/nullptr,
                              /*get_tensor_id=*/nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(values);
  pickler.stop();

  caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t count) {
    archive.append(static_cast<const char*>(bytes), count);
    return count;
  });
  writer.writeRecord("data.pkl", pickled.data(), pickled.size());
  size_t number = 0;
  for (const auto& tensor : pickler.tensorData()) {
    const auto& storage = tensor.storage();
    writer.writeRecord("data/" + std::to_string(number++), storage.data(), storage.nbytes());
  }
  writer.writeEndOfFile();
  return archive;
}

// First beside its place, so that what lies there is whole at any time.
void write_file(const std::string& path, const std::string& bytes) {
  const std::string part = path + ".part";
  errno = 0;
  std::ofstream file(part, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file && std::rename(part.c_str(), path.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  throw std::runtime_error("cannot write " + path + ": " + reason);
}

}  // namespace

void save_model(const Model& model, const std::string& path) {
  Values values;
  for (const auto& [name, value] : fsdp::full_state_dict(model)) values.insert(name, value);
  if (fsdp::rank() == 0) write_file(path, archive_of(values));
}

}  // namespace mnist
