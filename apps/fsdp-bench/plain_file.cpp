#include "plain_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "comm/posix/descriptor.h"

namespace bench {
namespace {

[[noreturn]] void fail(const std::string& path, const char* action) {
  throw std::runtime_error("cannot " + std::string(action) + " " + path + ": " +
                           std::generic_category().message(errno));
}

fsdp::Descriptor open_file(const std::string& path, int flags) {
  fsdp::Descriptor file(::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!file.is_open()) fail(path, "open");
  return file;
}

void sync(const std::string& path, int descriptor) {
  if (::fsync(descriptor) != 0) fail(path, "flush");
}

}  // namespace

void write_plain(const std::string& path, std::span<const std::byte> bytes) {
  const auto file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (const int error = fsdp::write_all(file.number(), bytes)) {
    errno = error;
    fail(path, "write");
  }
  sync(path, file.number());
  const auto folder = std::filesystem::path(path).parent_path().string();
  sync(folder, open_file(folder, O_RDONLY | O_DIRECTORY).number());
}

void read_plain(const std::string& path, std::span<std::byte> out) {
  const auto file = open_file(path, O_RDONLY);
  while (!out.empty()) {
    const auto count = ::read(file.number(), out.data(), out.size());
    if (count <= 0) fail(path, "read");
    out = out.subspan(static_cast<size_t>(count));
  }
}

void forget_cached(const std::string& path) {
  if (const int error = ::posix_fadvise(open_file(path, O_RDONLY).number(), 0, 0, POSIX_FADV_DONTNEED)) {
    errno = error;
    fail(path, "drop the cached pages of");
  }
}

}  // namespace bench
