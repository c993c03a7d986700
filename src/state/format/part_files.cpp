#include "state/format/part_files.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "comm/posix/file.h"
#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

constexpr uint64_t kMostPartBytes = uint64_t{1} << 30;
constexpr auto kBetweenLooks = std::chrono::milliseconds(10);

std::string text_path(const std::string& folder, int number) { return folder + "/part-" + std::to_string(number); }
std::string lock_path(const std::string& folder, int number) { return folder + "/writing-" + std::to_string(number); }

FileLock open_lock(const std::string& folder, int number) {
  const auto path = lock_path(folder, number);
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open())
    throw FormatError(path + ": cannot create the file: " + std::generic_category().message(errno) +
                      ". Check that the folder exists, that every rank sees the folder and that it is writable");
  return FileLock(std::move(file));
}

}  // namespace

PartWriter::PartWriter(const std::string& folder, int number)
    : folder_(folder), number_(number), lock_(open_lock(folder, number)) {
  if (!lock_.try_lock(LOCK_EX))
    throw FormatError(lock_path(folder, number) + ": cannot lock the file: " + std::generic_category().message(errno) +
                      ". Save to a file system that supports locks");
}

void PartWriter::leave(std::string_view text) const { write_text(text_path(folder_, number_), text); }

std::string await_part(const std::string& folder, int number, const std::stop_token& stop) {
  const auto lock = open_lock(folder, number);
  const auto path = text_path(folder, number);
  std::mutex mutex;
  std::condition_variable_any looks;
  std::unique_lock waiting(mutex);
  // The loop polls, because a blocking call of flock would not return if the writer hung.
  for (;;) {
    const bool ended = lock.try_lock(LOCK_SH);
    if (!ended && errno != EWOULDBLOCK && errno != EINTR)
      throw FormatError(lock_path(folder, number) + ": cannot find out whether the file is locked: " +
                        std::generic_category().message(errno) + ". Check that the folder still exists");
    // Looks for the text only after trying the lock, because a writer that succeeds writes its text before it ends. A
    // text file gets its name when it is complete.
    if (std::filesystem::exists(path)) return text_of_file(path, kMostPartBytes);
    if (ended)
      throw FormatError(
          folder + ": the writer of part " + std::to_string(number) +
          " ended before its rows were written. This checkpoint was abandoned; earlier checkpoints are complete");
    if (stop.stop_requested())
      throw FormatError(
          folder + ": the writer of part " + std::to_string(number) +
          " has not written its rows, and waiting for it was cancelled. Earlier checkpoints are complete");
    looks.wait_for(waiting, stop, kBetweenLooks, [] { return false; });
  }
}

void remove_parts(const std::string& folder, int count) {
  std::error_code ignored;  // files that remain do no harm
  for (int number = 0; number < count; ++number)
    for (const auto& path : {text_path(folder, number), lock_path(folder, number)})
      std::filesystem::remove(path, ignored);
}

}  // namespace fsdp::state
