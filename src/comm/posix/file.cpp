#include "comm/posix/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <system_error>

// Note [Temporary files]
// A temporary file is called NAME.0123456789abcdef.tmp, with random digits, and is opened with O_EXCL, so it is never a
// file of the user or of another writer of NAME. Its writer holds a lock on it (flock). The system releases the lock
// when a process is killed, so a temporary file that can be locked is a leftover. Before the writer has locked a new
// file, another process can take it for a leftover and remove it; the writer notices this and makes another file.

namespace fsdp {
namespace {

namespace fs = std::filesystem;

// The disk is told to begin to write whenever this many more bytes have come.
constexpr uint64_t kBytesToBegin = uint64_t{8} << 20;
constexpr int kMostLinks = 40;  // as many symbolic links as Linux follows in one path
constexpr size_t kDigits = 16, kMostNameBytes = 255;
constexpr std::string_view kTemporary = ".tmp";

std::string advice(int error) {
  const auto is_one_of = [&](std::initializer_list<int> errors) { return std::ranges::count(errors, error) > 0; };
  if (is_one_of({ENOSPC, EDQUOT})) return "Free some space";
  if (is_one_of({EACCES, EPERM, EROFS})) return "Name a folder that this user can write to";
  if (is_one_of({ENOENT, ENOTDIR})) return "Check the path; the folder may have been removed or its disk unmounted";
  if (is_one_of({EISDIR, EEXIST})) return "Name a file instead";
  if (error == ENAMETOOLONG) return "Choose a shorter name";
  if (error == EFBIG) return "Raise the limit on the size of files (ulimit -f)";
  if (error == EPIPE) return "The reader of this pipe has ended";
  if (error == EMFILE) return "Raise the limit on open files (ulimit -n)";
  return "Check the disk";
}

[[noreturn]] void fail_to(const std::string& path, const std::string& action, int error = errno) {
  throw FileError(path + ": cannot " + action + ": " + why_and_what_to_do(error));
}

Descriptor open_file(const std::string& path, int flags) {
  return Descriptor(static_cast<int>(TEMP_FAILURE_RETRY(::open(path.c_str(), flags | O_CLOEXEC, 0666))));
}

// Returns the path after following symbolic links at its end. The file can be missing.
std::string followed(std::string path) {
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code is_no_link;
    const auto next = fs::read_symlink(path, is_no_link);
    if (is_no_link) break;
    path = (fs::path(path).parent_path() / next).string();
  }
  return path;
}

bool is_same_file(const std::string& path, const struct stat& other) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 && status.st_dev == other.st_dev && status.st_ino == other.st_ino;
}

// Returns true if the path names a regular file or nothing.
bool is_replaceable(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0 ? S_ISREG(status.st_mode) : errno == ENOENT;
}

// Returns the beginning of the names of a file's temporary files.
std::string stem_of(const std::string& name) {
  return name.substr(0, kMostNameBytes - kDigits - kTemporary.size() - 1) + ".";
}

fs::path name_beside(const fs::path& target) {
  std::random_device random;
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x%08x", random(), random());
  return target.parent_path() / (stem_of(target.filename().string()) + digits + std::string(kTemporary));
}

bool is_temporary_of(const std::string& target, const std::string& name) {
  const auto stem = stem_of(target);
  return name.size() == stem.size() + kDigits + kTemporary.size() && name.starts_with(stem) &&
         name.ends_with(kTemporary) && name.find_first_not_of("0123456789abcdef", stem.size()) == stem.size() + kDigits;
}

// Locks a file that this process made. Returns false if another process has mistaken the file for a leftover.
bool lock_own(const Descriptor& file) {
  // Where a file system has no locks, no other process can lock the file, so none removes it.
  if (::flock(file.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat status{};
  return ::fstat(file.number(), &status) == 0 && status.st_nlink > 0;
}

// A signal interrupts posix_fallocate, and some file systems then undo the whole call. So the room is reserved in
// pieces that are small enough to be done between two signals of a timer.
int take_room(int file, off_t size) {
  constexpr off_t kPiece = off_t{1} << 20;
  for (off_t done = 0; done < size;) {
    const int error = posix_fallocate(file, done, std::min(kPiece, size - done));
    if (error != 0 && error != EINTR) return error;
    if (error == 0) done += kPiece;
  }
  return 0;
}

}  // namespace

std::string why_and_what_to_do(int error) { return std::generic_category().message(error) + ". " + advice(error); }

std::string absolute_path(const std::string& path) {
  if (path.empty()) return path;
  std::error_code error;
  const auto absolute = fs::absolute(path, error);
  return error ? path : absolute.string();  // the working folder is gone; opening the file will fail with the reason
}

InputFile::InputFile(std::string path) : path_(std::move(path)), file_(open_file(path_, O_RDONLY | O_NONBLOCK)) {
  if (!file_.is_open()) fail_to(path_, "open the file");
  struct stat status{};
  if (::fstat(file_.number(), &status) != 0) fail_to(path_, "read the file's status");
  if (!S_ISREG(status.st_mode)) throw FileError(path_ + ": expected a regular file, found something else");
  bytes_ = static_cast<uint64_t>(status.st_size);
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const auto count = TEMP_FAILURE_RETRY(::pread(file_.number(), out.data(), out.size(), static_cast<off_t>(offset)));
    if (count < 0) fail_to(path_, "read " + std::to_string(out.size()) + " bytes at byte " + std::to_string(offset));
    if (count == 0)
      throw FileError(path_ + ": expected " + std::to_string(out.size()) + " bytes at byte " + std::to_string(offset) +
                      ", found the end of the file. The file is incomplete: use another copy or another checkpoint");
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

std::string text_of_file(const std::string& path, uint64_t most_bytes) {
  const InputFile file(path);
  if (file.bytes() > most_bytes)
    throw FileError(path + ": expected at most " + std::to_string(most_bytes) + " bytes, found " +
                    std::to_string(file.bytes()));
  std::string text(file.bytes(), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  struct stat there{};
  const bool is_there = ::stat(path_.c_str(), &there) == 0;
  if (!is_there && errno != ENOENT) fail_to(path_, "create the file");
  if (is_there && S_ISDIR(there.st_mode)) fail_to(path_, "create the file", EISDIR);
  target_ = followed(absolute_path(path_));
  // A link under /proc can name a path at which its file does not lie.
  if (is_there && !(S_ISREG(there.st_mode) && is_same_file(target_, there))) {
    target_.clear();
    file_ = open_file(path_, O_WRONLY | O_TRUNC | O_NOCTTY);
    if (!file_.is_open()) fail_to(path_, "open the file");
    return;
  }
  do {  // see Note [Temporary files]
    temporary_ = name_beside(target_).string();
    file_ = open_file(temporary_, O_RDWR | O_CREAT | O_EXCL);
    if (!file_.is_open() && errno != EEXIST) fail_to(path_, "create the file");
  } while (!file_.is_open() || !lock_own(file_));
  if (is_there) static_cast<void>(::fchmod(file_.number(), there.st_mode & 07777));  // a failure does no harm
}

OutputFile::~OutputFile() {
  if (file_.is_open() && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (const int error = write_all(file_.number(), bytes))
    fail_to(path_, "write " + std::to_string(bytes.size()) + " bytes", error);
  bytes_ += bytes.size();
  if (bytes_ - begun_ < kBytesToBegin) return;
  // This only makes `commit` faster, so a failure does no harm.
  ::sync_file_range(file_.number(), static_cast<off_t>(begun_), static_cast<off_t>(bytes_ - begun_),
                    SYNC_FILE_RANGE_WRITE);
  begun_ = bytes_;
}

void OutputFile::commit() {
  const bool is_synced = TEMP_FAILURE_RETRY(::fsync(file_.number())) == 0;
  // Most devices and all FIFOs refuse to be flushed.
  if (!is_synced && !(temporary_.empty() && (errno == EINVAL || errno == EROFS)))
    fail_to(path_, "flush the file to the disk");
  if (!temporary_.empty()) {
    if (!is_replaceable(target_)) fail_to(path_, "move the complete file to this name", EEXIST);
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail_to(path_, "move the complete file to this name");
  }
  file_.close();
  if (!temporary_.empty()) sync_folder(fs::path(target_).parent_path().string());
}

void remove_leftovers(const std::string& path) noexcept try {
  const fs::path target(followed(absolute_path(path)));
  std::error_code error;
  for (fs::directory_iterator entry(target.parent_path(), error), end; !error && entry != end; entry.increment(error)) {
    if (!is_temporary_of(target.filename().string(), entry->path().filename().string())) continue;
    const auto file = open_file(entry->path().string(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
    if (file.is_open() && ::flock(file.number(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
  }
} catch (const std::exception&) {
  // A leftover that is not removed only takes room.
}

void sync_folder(const std::string& path) {
  const auto folder = open_file(path, O_RDONLY | O_DIRECTORY);
  if (!folder.is_open() && errno == EACCES) return;  // a folder that this user can write to but not read
  if (!folder.is_open()) fail_to(path, "open the folder");
  // Some network file systems cannot flush a folder, which does no harm there.
  if (TEMP_FAILURE_RETRY(::fsync(folder.number())) != 0 && errno != EINVAL)
    fail_to(path, "flush the folder to the disk");
}

void write_text(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

int set_file_size(int file, size_t bytes, bool now) {
  const FileLimitSignalBlocked no_signal;
  const auto size = static_cast<off_t>(bytes);
  if (now) return take_room(file, size);
  return TEMP_FAILURE_RETRY(::ftruncate(file, size)) == 0 ? 0 : errno;
}

}  // namespace fsdp
