#include "state/torch_archive.h"

#include <exception>
#include <filesystem>
#include <memory>

#include "comm/core/check.h"
#include "state/format/file.h"
#include "state/format/format_error.h"

namespace fsdp::state {

void write_archive(const std::string& path, const std::function<void(torch::serialize::OutputArchive&)>& fill) {
  torch::serialize::OutputArchive archive(std::make_shared<torch::jit::CompilationUnit>());
  fill(archive);
  OutputFile file(path);
  // LibTorch's writer goes on writing while it is taken down by an exception, and a second one would end the program.
  std::exception_ptr error;
  archive.save_to([&](const void* bytes, size_t count) {
    if (!error) try {
        file.write({static_cast<const std::byte*>(bytes), count});
      } catch (...) {
        error = std::current_exception();
      }
    return count;
  });
  if (error) std::rethrow_exception(error);
  file.commit();
  const auto folder = std::filesystem::path(path).parent_path();
  sync_folder(folder.empty() ? "." : folder.string());
}

void read_archive(const std::string& path, const std::function<void(torch::serialize::InputArchive&)>& read) {
  const std::string what_was_expected =
      path + ": expected an archive of torch::save or fsdp::save of the same kind of object, found ";
  const InputFile file(path);  // says what is wrong with it in our words
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(
        [&](uint64_t offset, void* bytes, size_t count) {
          file.read(offset, {static_cast<std::byte*>(bytes), count});
          return count;
        },
        [&] { return static_cast<size_t>(file.bytes()); }, at::kCPU);
    read(archive);
  } catch (const FormatError&) {
    throw;
  } catch (const c10::Error& error) {
    throw FormatError(what_was_expected + first_line(error.what_without_backtrace()));
  } catch (const std::exception& error) {  // TorchScript has some of its own
    throw FormatError(what_was_expected + first_line(error.what()));
  }
}

at::Tensor rows_of(const at::Tensor& whole, const ModelTensor& tensor) {
  const auto rows = whole.dim() == 0 ? whole.view({1}) : whole;
  return rows.narrow(0, tensor.rows.first, tensor.rows.count).view(tensor.tensor.sizes());
}

}  // namespace fsdp::state
