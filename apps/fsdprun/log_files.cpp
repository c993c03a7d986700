#include "log_files.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "exit.h"

namespace fsdprun {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw Exit(kFailure, "the log file or folder " + path.string() + " cannot be made: " + why);
}

}  // namespace

LogFiles::LogFiles(const Flags& flags, Console& console) : redirects_(flags.redirects), tee_(flags.tee) {
  if (redirects_.is_empty() && tee_.is_empty()) return;
  std::error_code error;
  const fs::path base = flags.log_dir.empty() ? fs::temp_directory_path(error) / "fsdprun" : fs::path(flags.log_dir);
  fs::create_directories(base, error);
  if (error) refuse(base, error.message());
  std::string folder = (base / (flags.run_id + "_XXXXXX")).string();
  if (mkdtemp(folder.data()) == nullptr) refuse(folder, strerror(errno));
  folder_ = folder;
  console.say("the ranks' output is also or only in " + folder);
}

fsdp::Descriptor LogFiles::open_stdout(int attempt, int local_rank) const {
  if (!redirects_.has_stdout(local_rank) && !tee_.has_stdout(local_rank)) return fsdp::Descriptor();
  return open(attempt, local_rank, "stdout.log");
}

fsdp::Descriptor LogFiles::open_stderr(int attempt, int local_rank) const {
  if (!redirects_.has_stderr(local_rank) && !tee_.has_stderr(local_rank)) return fsdp::Descriptor();
  return open(attempt, local_rank, "stderr.log");
}

fsdp::Descriptor LogFiles::open(int attempt, int local_rank, const char* name) const {
  const fs::path folder = folder_ / ("attempt_" + std::to_string(attempt)) / std::to_string(local_rank);
  std::error_code error;
  fs::create_directories(folder, error);
  const fs::path path = folder / name;
  fsdp::Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.is_open()) refuse(path, strerror(errno));
  return file;
}

}  // namespace fsdprun
