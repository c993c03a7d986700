#include "state/format/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

// So much at a time is given to the disk while the rest is still to come.
constexpr uint64_t kBytesToBegin = uint64_t{8} << 20;

std::string advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or keep fewer checkpoints";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Name a folder that this user may write to";
    case ENOENT:
    case ENOTDIR:
      return "Check the path; the folder may have been removed or its disk unmounted";
    default:
      return "Check the disk";
  }
}

[[noreturn]] void fail_to(const std::string& path, const std::string& action) {
  const int error = errno;
  throw FormatError(path + ": cannot " + action + ": " + std::generic_category().message(error) + ". " + advice(error));
}

// Repeats a call that a signal interrupted.
template <class Call>
auto retry(const Call& call) {
  decltype(call()) result;
  do result = call();
  while (result < 0 && errno == EINTR);
  return result;
}

Descriptor open_file(const std::string& path, int flags) {
  return Descriptor(retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); }));
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)), file_(open_file(path_, O_RDONLY | O_NONBLOCK)) {
  if (!file_.is_open()) fail_to(path_, "open the file");
  struct stat status{};
  if (::fstat(file_.number(), &status) != 0) fail_to(path_, "look at the file");
  if (!S_ISREG(status.st_mode)) throw FormatError(path_ + ": expected a regular file, found something else there");
  bytes_ = static_cast<uint64_t>(status.st_size);
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto count =
        retry([&] { return ::pread(file_.number(), out.data(), out.size(), static_cast<off_t>(offset)); });
    if (count < 0) fail_to(path_, "read " + std::to_string(out.size()) + " bytes at byte " + std::to_string(offset));
    if (count == 0)
      throw FormatError(path_ + ": expected " + std::to_string(out.size()) + " bytes at byte " +
                        std::to_string(offset) +
                        ", found the end of the file. It is not whole: take another copy or checkpoint");
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

std::string text_of_file(const std::string& path, uint64_t most_bytes) {
  const InputFile file(path);
  if (file.bytes() > most_bytes)
    throw FormatError(path + ": expected at most " + std::to_string(most_bytes) + " bytes, found " +
                      std::to_string(file.bytes()));
  std::string text(file.bytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), temporary_(path_ + ".tmp"), file_(open_file(temporary_, O_WRONLY | O_CREAT | O_TRUNC)) {
  if (!file_.is_open()) fail_to(path_, "make the file");
}

OutputFile::~OutputFile() {
  if (file_.is_open()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = retry([&] { return ::write(file_.number(), bytes.data(), bytes.size()); });
    if (count < 0) fail_to(path_, "write " + std::to_string(bytes.size()) + " bytes");
    bytes = bytes.subspan(static_cast<size_t>(count));
    bytes_ += static_cast<uint64_t>(count);
  }
  if (bytes_ - begun_ >= kBytesToBegin) begin_writing();
}

void OutputFile::begin_writing() {
  // Only makes `commit` shorter, so where a disk cannot, nothing is lost.
  ::sync_file_range(file_.number(), static_cast<off_t>(begun_), static_cast<off_t>(bytes_ - begun_),
                    SYNC_FILE_RANGE_WRITE);
  begun_ = bytes_;
}

void OutputFile::commit() {
  if (retry([&] { return ::fsync(file_.number()); }) != 0) fail_to(path_, "bring the file to the disk");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_to(path_, "give the complete file its name");
  file_.close();
}

void sync_folder(const std::string& path) {
  const auto folder = open_file(path, O_RDONLY | O_DIRECTORY);
  if (!folder.is_open()) fail_to(path, "open the folder");
  // Some network file systems cannot, and need not.
  if (retry([&] { return ::fsync(folder.number()); }) != 0 && errno != EINVAL)
    fail_to(path, "bring the folder to the disk");
}

void write_text(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
  const auto folder = std::filesystem::path(path).parent_path();
  sync_folder(folder.empty() ? "." : folder.string());
}

}  // namespace fsdp::state
