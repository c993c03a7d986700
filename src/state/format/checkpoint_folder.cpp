#include "state/format/checkpoint_folder.h"

#include <fcntl.h>
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

#include "comm/core/fault_point.h"
#include "comm/posix/file.h"
#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "state/format/host_name.h"
#include "state/format/sizes.h"

// Note [A checkpoint that is replaced]
// A save of an existing step first renames the older checkpoint to replaced-step-N, then gives the new one the name
// step-N, and removes the older one when the new one has its name on every disk. If a save is interrupted in between,
// the older checkpoint remains:
// - Without a step-N, the older checkpoint counts as step-N, and the next save renames it back.
// - Beside a step-N that has all its files on this disk, the older checkpoint is not needed.
// - Beside a step-N with files on other disks, those disks may still have only the older checkpoint. A load then takes
//   the one of the two whose files are on all disks together. The older one is removed when a save of this step reaches
//   all disks, or together with step-N.
//
// Note [Checkpoints of a training that was given up]
// A training that resumes from an older checkpoint saves smaller steps than the folder has. The checkpoints of larger
// steps no longer belong to this training: they must not count among the newest, and must not be loaded later. They are
// renamed to abandoned-step-N as soon as the new checkpoint has its name on every disk. If a save is interrupted before
// that, the next save renames them (on several disks, the next save that completes). Abandoned checkpoints can still be
// read, so the user decides when to remove them.

namespace fsdp::state {
namespace {

namespace fs = std::filesystem;

constexpr char kNext[] = "next", kLatest[] = "latest", kLock[] = "lock";
constexpr std::string_view kStep = "step-", kPartial = "partial-", kReplaced = "replaced-", kAbandoned = "abandoned-";
constexpr uint64_t kMostManifestBytes = uint64_t{1} << 30;

std::string partial_name(int64_t step) { return std::string(kPartial) + name_of_step(step); }

// Returns a name that is unique to this attempt to save. Ranks that still write for an earlier attempt therefore do not
// write into the folder of this attempt.
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

std::string last_name_in(const fs::path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Runs `action` and converts file system errors to FormatError.
template <class Action>
auto translated(const Action& action) {
  try {
    return action();
  } catch (const fs::filesystem_error& error) {
    throw FormatError(error.path1().string() + ": " + error.code().message() +
                      ". Check that the folder exists, has free space and is writable");
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

// Renames the folder before removing it, so that no reader mistakes a partly removed checkpoint for a complete one.
void remove_checkpoint(const fs::path& path) {
  const auto rubbish = path.parent_path() / (std::string(kPartial) + path.filename().string());
  fs::rename(path, rubbish);
  fs::remove_all(rubbish);
}

fs::path replaced_path(const fs::path& checkpoint) {
  return checkpoint.parent_path() / (std::string(kReplaced) + checkpoint.filename().string());
}

// Renames `from` to `to`. See Note [A checkpoint that is replaced].
void rename_checkpoint(const fs::path& from, const fs::path& to) {
  const auto old = replaced_path(to);
  // If both exist, other disks may still need `old`, but not `to`.
  if (fs::exists(to) && fs::exists(old)) remove_checkpoint(to);
  if (!fs::exists(to)) return fs::rename(from, to);
  fs::rename(to, old);
  try {
    fault_point("checkpoint replaced");
    fs::rename(from, to);
  } catch (...) {
    std::error_code ignored;
    fs::rename(old, to, ignored);
    throw;
  }
}

// Returns true if all parts of the checkpoint are on this disk.
bool is_whole_here(const fs::path& checkpoint) try {
  const auto manifest = read_manifest(checkpoint.string());
  return std::ranges::all_of(manifest.files, [](const auto& file) { return file.second.host.empty(); });
} catch (const FileError&) {
  return false;
}

// Finishes or reverts interrupted replacements of checkpoints.
void recover_replaced(const fs::path& folder) {
  for (const auto& name : names_in(folder.string())) {
    if (!name.starts_with(kReplaced) || !step_in(name.substr(kReplaced.size()))) continue;
    const auto old = folder / name, checkpoint = folder / name.substr(kReplaced.size());
    if (!fs::exists(checkpoint))
      fs::rename(old, checkpoint);
    else if (is_whole_here(checkpoint))
      remove_checkpoint(old);
  }
}

// Returns the line in the file `pointer` (`latest` or `next`), or "" if the file does not exist.
std::string line_of(const std::string& folder, const char* pointer) {
  if (!fs::exists(folder + "/" + pointer)) return {};
  auto line = text_of_file(folder + "/" + pointer, 1000);
  if (line.ends_with('\n')) line.pop_back();
  return line;
}

// Returns the line to write to `next` for a checkpoint that is about to get the name `name`. The line includes the
// manifest's checksum, since an older checkpoint may still have this name.
std::string next_line_of(const std::string& name, std::string_view manifest) {
  return name + " " + hex_of(checksum_of(std::as_bytes(std::span(manifest))));
}

// Returns the checkpoint among `names` that `next` announced, if that checkpoint already has its final name.
std::optional<std::string> named_by_next(const std::string& folder, const std::vector<std::string>& names) {
  const auto next = line_of(folder, kNext), name = next.substr(0, next.find(' '));
  const auto path = folder + "/" + name;
  if (std::ranges::find(names, name) == names.end() || !fs::exists(path + "/" + kManifestName)) return std::nullopt;
  return next_line_of(name, read_manifest_text(path)) == next ? std::optional(name) : std::nullopt;
}

// Updates `latest` if the previous save was interrupted after it renamed its checkpoint and before it updated `latest`;
// in that case only `next` has the checkpoint's name.
void promote_next(const std::string& folder) {
  if (const auto newest = named_by_next(folder, checkpoint_names(folder)))
    write_text(folder + "/" + kLatest, *newest + "\n");
  fs::remove(folder + "/" + kNext);
}

// Renames the checkpoints of larger steps. See Note [Checkpoints of a training that was given up].
void set_aside_beyond(const fs::path& folder, int64_t step) {
  for (const auto larger : complete_steps(folder.string())) {
    if (larger <= step) continue;
    const auto checkpoint = folder / name_of_step(larger);
    const auto aside = folder / (std::string(kAbandoned) + name_of_step(larger));
    for (const auto& [from, to] : {std::pair(checkpoint, aside), {replaced_path(checkpoint), replaced_path(aside)}}) {
      if (fs::exists(to)) remove_checkpoint(to);
      if (fs::exists(from)) fs::rename(from, to);
    }
  }
}

// Removes the files that interrupted saves left, except the folder `own` of the current save, and finishes or reverts
// their renames.
void clean_up(const fs::path& folder, const std::string& own = {}) {
  for (const auto& name : incomplete_names(folder.string()))
    if (name != own) fs::remove_all(folder / name);
  recover_replaced(folder);
  promote_next(folder.string());
  if (const auto names = checkpoint_names(folder.string()); !names.empty())
    if (const auto newest = step_in(names.front()); newest && is_whole_here(folder / names.front()))
      set_aside_beyond(folder, *newest);
  for (const auto* pointer : {kNext, kLatest}) remove_leftovers((folder / pointer).string());
}

// Opens the lock file of the folder. Creates the folder and the file if necessary.
Descriptor open_lock_of(const std::string& folder) {
  translated([&] { return fs::create_directories(folder); });
  Descriptor file(::open((folder + "/" + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file.is_open())
    throw FormatError(folder + ": cannot write to the folder: " + std::generic_category().message(errno) +
                      ". Name a folder that this user can write to");
  return file;
}

// Returns the text that the holder of the lock wrote to the lock file.
std::string writer_in(const std::string& path) {
  std::string writer;
  std::getline(std::ifstream(path), writer);
  return writer.empty() ? "it" : writer;
}

// Returns the path of the current attempt to save. A locked folder has only one attempt.
std::string path_of_attempt(const std::string& folder, int64_t step) {
  for (const auto& name : incomplete_names(folder))
    if (name.starts_with(partial_name(step) + ".")) return folder + "/" + name;
  throw FormatError(folder + ": the folder " + partial_name(step) +
                    " with the files of this save no longer exists, because " +
                    "something else has removed it. Save again");
}

}  // namespace

std::string name_of_step(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%012lld", static_cast<long long>(step));
  return name;
}

FolderLock::FolderLock(const std::string& folder) : lock_(open_lock_of(folder)) {
  const auto path = folder + "/" + kLock;
  if (!lock_.try_lock(LOCK_EX))
    throw FormatError(folder + ": another job writes checkpoints to this folder: " + writer_in(path) + " has locked " +
                      path +
                      ". Give each job a folder of its own. If that host is lost, the file server releases the lock "
                      "after a while; save again then, or remove the lock file");
  const auto text = "process " + std::to_string(::getpid()) + " on host '" + host_name() + "'\n";
  // Other jobs read the text only for the error message above, so the end of an older, longer text does no harm.
  if (::pwrite(lock_.number(), text.data(), text.size(), 0) < 0) return;
}

std::vector<int64_t> complete_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const std::string_view name : names_in(folder))
    if (const auto step = step_in(name.starts_with(kReplaced) ? name.substr(kReplaced.size()) : name))
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::vector<std::string> incomplete_names(const std::string& folder) {
  auto names = names_in(folder);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with(kPartial); });
  return names;
}

std::string begin_step(const std::string& folder, int64_t step, const FolderLock& /*lock*/) {
  return translated([&] {
    clean_up(folder);
    const auto path = fs::path(folder) / name_of_attempt(step);
    fs::create_directory(path);
    return path.string();
  });
}

std::optional<FolderLock> join_step(const std::string& folder, const std::string& name) {
  const auto path = fs::path(folder) / name;
  // create_directory returns true to only one of the ranks on a disk.
  const bool is_made_here = translated([&] {
    fs::create_directories(folder);
    return fs::create_directory(path);
  });
  if (!is_made_here) return std::nullopt;
  try {
    FolderLock lock(folder);
    translated([&] { clean_up(folder, name); });
    return lock;
  } catch (...) {
    std::error_code ignored;
    fs::remove(path, ignored);
    throw;
  }
}

// `next` announces the checkpoint before the rename, because the save may be interrupted between the rename and the
// update of `latest`.
void name_step(const std::string& folder, const Manifest& manifest, const FolderLock& /*lock*/) {
  const auto name = name_of_step(manifest.step);
  const auto partial = path_of_attempt(folder, manifest.step);
  const auto text = manifest_text(manifest);
  // parse_manifest checks that the checkpoint has every row exactly once, before other checkpoints are removed.
  static_cast<void>(parse_manifest(text, partial));
  write_text(partial + "/" + kManifestName, text);
  write_text(folder + "/" + kNext, next_line_of(name, text) + "\n");
  fault_point("checkpoint promised");
  translated([&] { rename_checkpoint(partial, fs::path(folder) / name); });
  sync_folder(folder);
  write_text(folder + "/" + kLatest, name + "\n");
  std::error_code ignored;  // a `next` that remains does no harm: it has the same name as `latest`
  fs::remove(folder + "/" + kNext, ignored);
}

void keep_newest(const std::string& folder, int64_t step, std::optional<int64_t> keep, const FolderLock& /*lock*/) {
  translated([&] {
    const fs::path in(folder);
    if (const auto replaced = replaced_path(in / name_of_step(step)); fs::exists(replaced)) remove_checkpoint(replaced);
    set_aside_beyond(in, step);
    if (!keep) return;
    const auto steps = complete_steps(folder);  // the largest is `step`, since larger ones were set aside above
    for (int64_t i = 0; i + std::max<int64_t>(*keep, 1) < static_cast<int64_t>(steps.size()); ++i)
      for (const auto& old : places_of((in / name_of_step(steps[static_cast<size_t>(i)])).string()))
        remove_checkpoint(old);
  });
}

void abandon_step(const std::string& folder, int64_t step, const FolderLock& /*lock*/) noexcept {
  try {
    const auto attempt = path_of_attempt(folder, step);  // throws if the checkpoint already has its final name
    fs::remove(folder + "/" + kNext);
    fs::remove_all(attempt);
  } catch (const std::exception&) {
    // The save is abandoned because of another error, and that error is more important.
  }
}

std::vector<std::string> checkpoint_names(const std::string& path) {
  if (translated([&] { return fs::exists(path + "/" + kManifestName); })) return {"."};
  if (!fs::is_directory(path)) return {};
  std::vector<std::string> names;
  for (const auto step : complete_steps(path)) names.push_back(name_of_step(step));
  std::ranges::reverse(names);
  // A folder named step-N is a checkpoint even if its manifest is missing; the error comes when the manifest is read.
  if (names.empty() && step_in(last_name_in(path))) return {"."};
  // Moves the checkpoint that `latest` names to the front, and then the one that `next` announced, which is newer.
  for (const auto& newest : {line_of(path, kLatest), named_by_next(path, names).value_or("")})
    if (const auto named = std::ranges::find(names, newest); named != names.end())
      std::rotate(names.begin(), named, named + 1);
  return names;
}

std::string find_checkpoint(const std::string& path) {
  const auto names = checkpoint_names(path);
  if (!names.empty()) {
    const auto newest = names.front() == "." ? path : path + "/" + names.front();
    const auto places = places_of(newest);
    return places.empty() ? newest : places.front();
  }
  if (!fs::is_directory(path))
    throw FormatError(path + ": expected a checkpoint or the folder of a run's checkpoints, but no such folder exists");
  throw FormatError(path + ": expected a checkpoint, found none" +
                    (incomplete_names(path).empty() ? "" : " that is complete: every save was interrupted"));
}

std::vector<std::string> places_of(const std::string& checkpoint) {
  return translated([&] {
    std::vector<std::string> places{checkpoint, replaced_path(checkpoint).string()};
    std::erase_if(places, [](const std::string& place) { return !fs::exists(place); });
    return places;
  });
}

std::string read_manifest_text(const std::string& path) {
  if (!translated([&] { return fs::exists(path + "/" + kManifestName); }))
    throw FormatError(path + ": expected manifest.json, found none. The checkpoint is damaged: use another one");
  return text_of_file(path + "/" + kManifestName, kMostManifestBytes);
}

Manifest read_manifest(const std::string& path) {
  return parse_manifest(read_manifest_text(path), path + "/" + kManifestName);
}

SafetensorsFile open_file_of(const Manifest& manifest, const std::string& checkpoint, const std::string& name) {
  const auto& expected = manifest.files.at(name);
  if (!expected.host.empty() && !fs::exists(checkpoint + "/" + name))
    throw FormatError(checkpoint + "/" + name + ": the file is not on this disk, because the host '" + expected.host +
                      "' wrote it to its own disk. Start a rank on that host, or copy the file here");
  SafetensorsFile file(checkpoint + "/" + name);
  if (file.bytes() != expected.bytes)
    throw FormatError(file.path() + ": expected " + std::to_string(expected.bytes) + " bytes, found " +
                      std::to_string(file.bytes()) + ". The checkpoint is damaged: use another one");
  if (file.header_checksum() != expected.header_checksum)
    throw FormatError(file.path() + ": expected a header with the checksum " + hex_of(expected.header_checksum) +
                      ", found " + hex_of(file.header_checksum()) +
                      ". The file belongs to a different checkpoint or is damaged");
  return file;
}

}  // namespace fsdp::state
