#include "saving.h"

#include <caffe2/serialize/inline_container.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/torch.h>

#include "comm/posix/file.h"

namespace mnist {
namespace {

using Values = c10::Dict<std::string, torch::Tensor>;

// Returns the bytes that Python's torch.save would write for a dictionary. torch::pickle_save also writes the
// dictionary's type, and Python's torch.load refuses that unless the caller tells it to trust the file.
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

}  // namespace

void save_model(const Model& model, const std::string& path) {
  Values values;
  for (const auto& [name, value] : fsdp::full_state_dict(model)) values.insert(name, value);
  if (fsdp::rank() != 0) return;
  fsdp::remove_leftovers(path);
  fsdp::write_text(path, archive_of(values));
}

}  // namespace mnist
