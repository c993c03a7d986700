#include "train/log_file.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "comm/posix/file.h"
#include "comm/posix/descriptor.h"

namespace fsdp::train {
namespace {

int flags_of(LogFile::Begin begin) {
  if (begin == LogFile::Begin::kNew) return O_EXCL;
  return begin == LogFile::Begin::kAnew ? O_TRUNC : 0;
}

}  // namespace

LogFile::LogFile(std::string path, Begin begin)
    : path_(std::move(path)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags_of(begin), 0666)) {
  if (!is_open() && !(begin == Begin::kNew && errno == EEXIST)) fail(errno);
}

void LogFile::append(std::string_view bytes) {
  struct stat before{};
  const bool is_regular = ::fstat(file_.number(), &before) == 0 && S_ISREG(before.st_mode);
  if (const int error = write_all(file_.number(), bytes)) {
    // Removes the incomplete piece, because readers cannot read past an incomplete line or record.
    [[maybe_unused]] const int cut = is_regular ? ::ftruncate(file_.number(), before.st_size) : 0;
    fail(error);
  }
}

void LogFile::fail(int error) const {
  throw Error("[fsdp] metrics: '" + path_ + "' cannot be written: " + why_and_what_to_do(error));
}

}  // namespace fsdp::train
