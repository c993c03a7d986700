#include "state/format/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <random>
#include <system_error>

#include "state/format/format_error.h"
#include "state/format/host_name.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

namespace fs = std::filesystem;

constexpr char kNext[] = "next", kLatest[] = "latest", kLock[] = "lock";
constexpr std::string_view kStep = "step-", kPartial = "partial-";
constexpr uint64_t kMostManifestBytes = uint64_t{1} << 30;

std::string partial_name(int64_t step) { return std::string(kPartial) + name_of_step(step); }

// Each attempt has a name of its own: what an earlier one's ranks still write does not come into it.
std::string name_of_attempt(int64_t step) {
  char digits[20];
  std::snprintf(digits, sizeof digits, ".%08x", std::random_device{}());
  return partial_name(step) + digits;
}

std::optional<int64_t> step_in(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  int64_t step = 0;
  const auto digits = name.substr(kStep.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || end != digits.data() + digits.size() || name_of_step(step) != name) return std::nullopt;
  return step;
}

// Calls what throws errors of the file system.
template <class Action>
auto translated(const Action& action) {
  try {
    return action();
  } catch (const fs::filesystem_error& error) {
    throw FormatError(error.path1().string() + ": " + error.code().message() +
                      ". Check that the folder is there, has room and may be written to");
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  return translated([&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  });
}

// `to` may be there: then the two change places, and what it was is removed. Where a file system cannot do that at once
// (NFS), there is neither for a moment.
void rename_over(const fs::path& from, const fs::path& to) {
  if (!fs::exists(to)) return fs::rename(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(from);
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
    throw fs::filesystem_error("rename", to, std::error_code(errno, std::generic_category()));
  const auto old = to.parent_path() / (std::string(kPartial) + to.filename().string());
  fs::rename(to, old);
  fs::rename(from, to);
  fs::remove_all(old);
}

// What `pointer` (`latest` or `next`) names, if there is such a checkpoint among `names`.
std::optional<std::string> named_by(const std::string& folder, const char* pointer,
                                    const std::vector<std::string>& names) {
  if (!fs::exists(folder + "/" + pointer)) return std::nullopt;
  auto name = text_of_file(folder + "/" + pointer, 1000);
  if (name.ends_with('\n')) name.pop_back();
  return std::ranges::find(names, name) == names.end() ? std::nullopt : std::optional(name);
}

// Who has a lock, as the file says.
std::string writer_in(const std::string& path) {
  std::string writer;
  std::getline(std::ifstream(path), writer);
  return writer.empty() ? "one" : writer;
}

// Of the one attempt that there is while the folder is locked.
std::string path_of_attempt(const std::string& folder, int64_t step) {
  for (const auto& name : incomplete_names(folder))
    if (name.starts_with(partial_name(step) + ".")) return folder + "/" + name;
  throw FormatError(folder + ": expected the folder " + partial_name(step) + " with what was written, found none. It " +
                    "was removed meanwhile: save again");
}

}  // namespace

std::string name_of_step(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%012lld", static_cast<long long>(step));
  return name;
}

FolderLock::FolderLock(const std::string& folder) {
  translated([&] { return fs::create_directories(folder); });
  const auto path = folder + "/" + kLock;
  file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file_.is_open())
    throw FormatError(folder + ": cannot write to the folder: " + std::generic_category().message(errno) +
                      ". Name a folder that this user may write to");
  if (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0)
    throw FormatError(folder + ": expected no other job that writes checkpoints here, found " + writer_in(path) +
                      ", which has locked " + path +
                      ". Give each job a folder of its own. If that host is lost, its file server frees the lock after "
                      "a while; save again then, or remove the file");
  const auto text = "process " + std::to_string(::getpid()) + " on host '" + host_name() + "'\n";
  // For the message above alone; what a longer text left behind it does not matter.
  if (::pwrite(file_.number(), text.data(), text.size(), 0) < 0) return;
}

std::vector<int64_t> complete_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const auto& name : names_in(folder))
    if (const auto step = step_in(name)) steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::string> incomplete_names(const std::string& folder) {
  auto names = names_in(folder);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with(kPartial); });
  return names;
}

std::string begin_step(const std::string& folder, int64_t step, const FolderLock& /*lock*/) {
  return translated([&] {
    for (const auto& name : incomplete_names(folder)) fs::remove_all(fs::path(folder) / name);
    // The save before this one may have ended between its name and `latest`: `next` alone knows, and is written anew.
    if (const auto newest = named_by(folder, kNext, checkpoint_names(folder)))
      write_text(folder + "/" + kLatest, *newest + "\n");
    const auto path = fs::path(folder) / name_of_attempt(step);
    fs::create_directory(path);
    return path.string();
  });
}

std::optional<FolderLock> join_step(const std::string& folder, const std::string& name) {
  const auto path = fs::path(folder) / name;
  // Of all who come here on one disk, one makes it.
  const bool is_made_here = translated([&] {
    fs::create_directories(folder);
    return fs::create_directory(path);
  });
  if (!is_made_here) return std::nullopt;
  try {
    FolderLock lock(folder);
    translated([&] {
      for (const auto& other : incomplete_names(folder))
        if (other != name) fs::remove_all(fs::path(folder) / other);
    });
    return lock;
  } catch (...) {
    std::error_code ignored;
    fs::remove(path, ignored);
    throw;
  }
}

// `next` says before the checkpoint has its name that it will be the newest one: `latest` says so only afterwards, and a
// save may end between the two.
void name_step(const std::string& folder, const Manifest& manifest, const FolderLock& /*lock*/) {
  const auto name = name_of_step(manifest.step);
  const auto partial = path_of_attempt(folder, manifest.step);
  const auto text = manifest_text(manifest);
  static_cast<void>(parse_manifest(text, partial));  // before others are removed: that every row is there once
  write_text(partial + "/" + kManifestName, text);
  write_text(folder + "/" + kNext, name + "\n");
  translated([&] { rename_over(partial, fs::path(folder) / name); });
  sync_folder(folder);
  write_text(folder + "/" + kLatest, name + "\n");
  std::error_code ignored;  // it says the same as `latest`
  fs::remove(folder + "/" + kNext, ignored);
}

void keep_newest(const std::string& folder, int64_t step, std::optional<int64_t> keep, const FolderLock& /*lock*/) {
  if (!keep) return;
  // The newest are those with the largest steps, and the one that was just written whatever its step is.
  auto steps = complete_steps(folder);
  std::erase(steps, step);
  const auto others = std::max<int64_t>(*keep - 1, 0);
  for (int64_t i = 0; i + others < static_cast<int64_t>(steps.size()); ++i) {
    const auto old = name_of_step(steps[static_cast<size_t>(i)]);
    // Under the other name first: half of a checkpoint must not look like one.
    translated([&] {
      fs::rename(fs::path(folder) / old, fs::path(folder) / (std::string(kPartial) + old));
      fs::remove_all(fs::path(folder) / (std::string(kPartial) + old));
    });
  }
}

void abandon_step(const std::string& folder, int64_t step, const FolderLock& /*lock*/) noexcept {
  try {
    fs::remove_all(path_of_attempt(folder, step));
  } catch (const std::exception&) {
    // The error that led here counts.
  }
}

std::vector<std::string> checkpoint_names(const std::string& path) {
  if (translated([&] { return fs::exists(path + "/" + kManifestName); })) return {"."};
  if (!fs::is_directory(path)) return {};
  std::vector<std::string> names;
  for (const auto step : complete_steps(path)) names.push_back(name_of_step(step));
  std::ranges::reverse(names);
  for (const auto* pointer : {kLatest, kNext}) {  // the second one counts more
    if (const auto name = named_by(path, pointer, names)) {
      const auto named = std::ranges::find(names, *name);
      std::rotate(names.begin(), named, named + 1);
    }
  }
  return names;
}

std::string find_checkpoint(const std::string& path) {
  const auto names = checkpoint_names(path);
  if (!names.empty()) return names.front() == "." ? path : path + "/" + names.front();
  if (!fs::is_directory(path))
    throw FormatError(path + ": expected a checkpoint or the folder of a run's checkpoints, found no such folder");
  throw FormatError(path + ": expected a checkpoint, found none" +
                    (incomplete_names(path).empty() ? "" : " that is complete: every save was interrupted"));
}

std::string read_manifest_text(const std::string& path) {
  return text_of_file(path + "/" + kManifestName, kMostManifestBytes);
}

Manifest read_manifest(const std::string& path) {
  return parse_manifest(read_manifest_text(path), path + "/" + kManifestName);
}

SafetensorsFile open_file_of(const Manifest& manifest, const std::string& checkpoint, const std::string& name) {
  const auto& expected = manifest.files.at(name);
  if (!expected.host.empty() && !fs::exists(checkpoint + "/" + name))
    throw FormatError(checkpoint + "/" + name + ": the file is not here: the host '" + expected.host +
                      "' wrote it to a disk of its own. Start a rank there, or copy the file here");
  SafetensorsFile file(checkpoint + "/" + name);
  if (file.bytes() != expected.bytes)
    throw FormatError(file.path() + ": expected " + std::to_string(expected.bytes) + " bytes, found " +
                      std::to_string(file.bytes()) + ". The checkpoint is damaged: take another one");
  if (file.header_checksum() != expected.header_checksum)
    throw FormatError(file.path() + ": expected a header with the checksum " + hex_of(expected.header_checksum) +
                      ", found " + hex_of(file.header_checksum()) + ". It belongs to another checkpoint or is damaged");
  return file;
}

}  // namespace fsdp::state
