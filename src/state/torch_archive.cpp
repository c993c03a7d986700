#include "state/torch_archive.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <memory>

#include "comm/core/check.h"
#include "comm/posix/file.h"
#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

using Names = std::set<std::string>;

// Returns true if LibTorch can read an archive with these names. Tries it with an archive in memory.
bool can_be_read(const Names& tensors, const Names& modules) try {
  using torch::serialize::OutputArchive;
  OutputArchive archive(std::make_shared<torch::jit::CompilationUnit>());
  OutputArchive of_tensors(archive.compilation_unit()), of_modules(archive.compilation_unit());
  for (const auto& name : tensors) of_tensors.write(name, at::empty({0}));
  for (const auto& name : modules) {
    OutputArchive module(archive.compilation_unit());
    of_modules.write(name, module);
  }
  archive.write("tensors", of_tensors);
  archive.write("modules", of_modules);
  TextWriter written;
  archive.save_to(written);
  TextReader reading(written.str());
  torch::serialize::InputArchive read, found_tensors, found_modules;
  read.load_from(reading);
  read.read("tensors", found_tensors);
  read.read("modules", found_modules);
  at::Tensor tensor;
  torch::serialize::InputArchive module;
  return std::ranges::all_of(tensors, [&](const auto& name) { return found_tensors.try_read(name, tensor); }) &&
         std::ranges::all_of(modules, [&](const auto& name) { return found_modules.try_read(name, module); });
} catch (const std::exception&) {
  return false;
}

}  // namespace

std::vector<std::string> unreadable_names(const Names& tensors, const Names& modules) {
  std::vector<std::string> unreadable;
  if (can_be_read(tensors, modules)) return unreadable;
  for (const auto& name : tensors)
    if (!can_be_read({name}, {})) unreadable.push_back(name);
  for (const auto& name : modules)
    if (!tensors.contains(name) && !can_be_read({}, {name})) unreadable.push_back(name);
  return unreadable;
}

void write_archive(const std::string& path, const std::function<void(torch::serialize::OutputArchive&)>& fill) {
  torch::serialize::OutputArchive archive(std::make_shared<torch::jit::CompilationUnit>());
  fill(archive);
  remove_leftovers(path);
  OutputFile file(path);
  // The callback must not throw: LibTorch's writer would write again in its destructor, and a second exception there
  // would terminate the program.
  FirstError error;
  archive.save_to([&](const void* bytes, size_t count) {
    error.run([&] { file.write({static_cast<const std::byte*>(bytes), count}); });
    return count;
  });
  error.rethrow();
  file.commit();
}

void read_archive(const std::string& path, const std::function<void(torch::serialize::InputArchive&)>& read) {
  const std::string what_was_expected =
      path + ": expected an archive of torch::save or fsdp::save with the same kind of object, found an error: ";
  const InputFile file(path);  // throws FileError, unlike LibTorch's own reader of files
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(
        [&](uint64_t offset, void* bytes, size_t count) {
          file.read(offset, {static_cast<std::byte*>(bytes), count});
          return count;
        },
        [&] { return static_cast<size_t>(file.bytes()); }, at::kCPU);
    read(archive);
  } catch (const FileError&) {
    throw;
  } catch (const std::exception& error) {  // TorchScript throws types other than c10::Error
    throw FormatError(what_was_expected + first_line(what_without_backtrace(error)));
  }
}

at::Tensor rows_of(const at::Tensor& whole, const ModelTensor& tensor) {
  const auto sizes = whole.sizes();
  std::vector<int64_t> row_sizes{c10::multiply_integers(sizes.slice(0, tensor.joined_dims))};
  const auto behind = sizes.slice(tensor.joined_dims);
  row_sizes.insert(row_sizes.end(), behind.begin(), behind.end());
  return whole.reshape(row_sizes).narrow(0, tensor.rows.first, tensor.rows.count).view(tensor.tensor.sizes());
}

}  // namespace fsdp::state
