#include "log_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "exit.h"

namespace fsdprun {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOwnFolder = 0700;
constexpr mode_t kOwnFile = 0600;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Exit(kFailure, "the log file or folder " + path + " cannot be created: " + why);
}

/// Opens a folder in `parent`, and makes it if it does not exist. Refuses symbolic links. `path` is for messages.
fsdp::Descriptor enter(int parent, const std::string& name, const std::string& path) {
  if (mkdirat(parent, name.c_str(), kOwnFolder) != 0 && errno != EEXIST) refuse(path, strerror(errno));
  fsdp::Descriptor folder(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.is_open()) return folder;
  const int error = errno;
  struct stat status{};
  const bool is_link = fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
  refuse(path, is_link ? "it is a link, which fsdprun does not follow; choose a different folder with --log-dir"
                       : strerror(error));
}

/// Returns the folder for this user's log files if --log-dir is not given.
fs::path own_folder() {
  std::error_code error;
  const auto parent = fs::temp_directory_path(error);
  if (!error) return parent / ("fsdprun-" + std::to_string(geteuid()));
  const char* named = std::getenv("TMPDIR");
  throw Exit(kFailure, "the folder for temporary files cannot be used: " + error.message() +
                           (named == nullptr ? std::string() : std::string(" (TMPDIR is ") + named + ")") +
                           "; set TMPDIR to a different folder, or choose a folder with --log-dir");
}

/// Opens the folder that --log-dir names. Its owner and its permissions do not matter.
fsdp::Descriptor enter_chosen(const fs::path& path) {
  fs::path folder = path;
  if (!folder.has_filename()) folder = folder.parent_path();  // A path such as "logs/" has no file name.
  std::error_code error;
  if (folder.has_parent_path()) fs::create_directories(folder.parent_path(), error);
  if (error) refuse(path.string(), error.message());
  return enter(AT_FDCWD, folder.string(), folder.string());
}

/// Opens this user's folder among the temporary files. Refuses a folder that belongs to another user or that other
/// users may access.
fsdp::Descriptor enter_own(const fs::path& path) {
  fsdp::Descriptor folder = enter(AT_FDCWD, path.string(), path.string());
  struct stat status{};
  if (fstat(folder.number(), &status) != 0) refuse(path.string(), strerror(errno));
  if (status.st_uid != geteuid())
    refuse(path.string(), "it belongs to another user; choose a different folder with --log-dir");
  if ((status.st_mode & 077) != 0)
    refuse(
        path.string(),
        "other users may access it; remove their permissions (chmod 700), or choose a different folder with --log-dir");
  return folder;
}

/// Returns the job's name. Characters that do not suit a file's name are replaced.
std::string file_name(std::string run_id) {
  std::ranges::replace_if(
      run_id, [](unsigned char c) { return std::isalnum(c) == 0 && std::strchr("-_.", c) == nullptr; }, '_');
  return run_id.starts_with('.') ? "_" + run_id : run_id;
}

std::string six_letters() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::string letters;
  for (int i = 0; i < 6; ++i) letters += kLetters[random() % kLetters.size()];
  return letters;
}

}  // namespace

LogFiles::LogFiles(const Flags& flags, Console& console) : redirects_(flags.redirects), tee_(flags.tee) {
  if (redirects_.is_empty() && tee_.is_empty()) return;
  const fs::path base = flags.log_dir.empty() ? own_folder() : fs::path(flags.log_dir);
  const fsdp::Descriptor parent = flags.log_dir.empty() ? enter_own(base) : enter_chosen(base);
  std::string name;
  do {
    name = file_name(flags.run_id) + "_" + six_letters();
    path_ = (base / name).string();
  } while (mkdirat(parent.number(), name.c_str(), kOwnFolder) != 0 && errno == EEXIST);
  folder_ = enter(parent.number(), name, path_);
  console.say("the log files of the ranks are in " + path_);
}

LogFile LogFiles::open_stdout(int attempt, int local_rank) const {
  if (!redirects_.has_stdout(local_rank) && !tee_.has_stdout(local_rank)) return {};
  return open(attempt, local_rank, "stdout.log");
}

LogFile LogFiles::open_stderr(int attempt, int local_rank) const {
  if (!redirects_.has_stderr(local_rank) && !tee_.has_stderr(local_rank)) return {};
  return open(attempt, local_rank, "stderr.log");
}

LogFile LogFiles::open(int attempt, int local_rank, const std::string& name) const {
  const std::string of_attempt = "attempt_" + std::to_string(attempt);
  const std::string of_rank = std::to_string(local_rank);
  const std::string path = path_ + "/" + of_attempt + "/" + of_rank;
  const fsdp::Descriptor attempt_folder = enter(folder_.number(), of_attempt, path_ + "/" + of_attempt);
  const fsdp::Descriptor folder = enter(attempt_folder.number(), of_rank, path);
  fsdp::Descriptor file(
      openat(folder.number(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnFile));
  if (!file.is_open()) refuse(path + "/" + name, strerror(errno));
  return {std::move(file), path + "/" + name};
}

}  // namespace fsdprun
