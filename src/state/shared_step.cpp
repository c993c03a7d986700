#include "state/shared_step.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <utility>

#include "comm/core/check.h"
#include "comm/posix/file.h"
#include "state/checkpoint_part.h"

namespace fsdp::state {
namespace {

// After a rank has written, it tells the others by one of these words whether it created its disk's folder.
constexpr char kMadeIt[] = "made it", kFoundIt[] = "found it";

}  // namespace

SharedStep::SharedStep(SaveOptions options, const Ranks& ranks)
    : folder_(absolute_path(ranks.path())), options_(std::move(options)) {
  ranks.compare_issued();
  const auto name = ranks.together([&]() -> std::string {
    if (ranks.rank() > 0) return {};
    lock_ = std::make_unique<FolderLock>(folder_);
    return std::filesystem::path(begin_step(folder_, options_.step, *lock_)).filename().string();
  })[0];
  path_ = folder_ + "/" + name;
}

SharedStep::~SharedStep() {
  if (lock_) abandon_step(folder_, options_.step, *lock_);
}

void SharedStep::write(const Ranks& ranks, const std::function<void()>& write) {
  const auto marks = ranks.together([&] {
    if (!lock_)
      if (auto lock = join_step(folder_, std::filesystem::path(path_).filename().string()))
        lock_ = std::make_unique<FolderLock>(std::move(*lock));
    write();
    return lock_ ? kMadeIt : kFoundIt;
  });
  for (int rank = 1; rank < ranks.world_size(); ++rank)
    if (marks[static_cast<size_t>(rank)] == kMadeIt) completing_.push_back(rank);
  if (is_spread() && ranks.rank() == 0) {
    TORCH_WARN_ONCE(
        ranks.where(), "the ranks see different disks below ", folder_,
        ". Each disk gets what its ranks write, and loading needs all of these disks (docs/checkpoints.md)");
  }
}

void SharedStep::complete_here(Manifest manifest) {
  if (!lock_) return;
  if (!is_spread())
    for (auto& [name, file] : manifest.files) file.host.clear();
  name_step(folder_, manifest, *lock_);
  if (is_spread()) return;
  keep_newest(folder_, options_.step, options_.keep, *lock_);
  lock_.reset();
}

void SharedStep::complete(const std::string& part, const Ranks& ranks) {
  JoinedManifest all;
  FirstError error;
  for (const int root : completing_)
    ranks.collect(part, root, [&](int rank, const std::string& of_rank) {
      error.run([&] { all.add(of_rank, whose_part(rank)); });
    });
  ranks.all_do([&] {
    error.rethrow();
    if (lock_) complete_here(all.take());
  });
  if (!is_spread()) return;
  const auto lock = std::move(lock_);
  ranks.all_do([&] {
    if (lock) keep_newest(folder_, options_.step, options_.keep, *lock);
  });
}

}  // namespace fsdp::state
