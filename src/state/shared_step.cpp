#include "state/shared_step.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <utility>

#include "state/checkpoint_part.h"

namespace fsdp::state {
namespace {

// Before what a rank wrote: whether it made the folder.
constexpr char kMadeIt = '+', kFoundIt = '-';

}  // namespace

SharedStep::SharedStep(std::string folder, SaveOptions options, const Ranks& ranks, const std::string& operation)
    : folder_(std::move(folder)), options_(std::move(options)) {
  const auto name = ranks.together(operation, [&]() -> std::string {
    if (ranks.rank() > 0) return {};
    lock_ = std::make_unique<FolderLock>(folder_);
    return std::filesystem::path(begin_step(folder_, options_.step, *lock_)).filename().string();
  })[0];
  path_ = folder_ + "/" + name;
}

SharedStep::~SharedStep() {
  if (lock_) abandon_step(folder_, options_.step, *lock_);
}

std::vector<std::string> SharedStep::write(const Ranks& ranks, const std::string& operation,
                                           const std::function<std::string()>& write) {
  auto parts = ranks.together(operation, [&] {
    if (!lock_)
      if (auto lock = join_step(folder_, std::filesystem::path(path_).filename().string()))
        lock_ = std::make_unique<FolderLock>(std::move(*lock));
    return (lock_ ? kMadeIt : kFoundIt) + write();
  });
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    is_spread_ = is_spread_ || (rank > 0 && parts[rank][0] == kMadeIt);
    parts[rank].erase(0, 1);
  }
  if (is_spread_ && ranks.rank() == 0) {
    TORCH_WARN_ONCE(ranks.where(operation), "the ranks see different disks below ", folder_,
                    ". Each gets what its ranks write, and loading needs all of them (docs/checkpoints.md)");
  }
  return parts;
}

void SharedStep::complete_here(const std::vector<std::string>& parts) {
  if (!lock_) return;
  name_step(folder_, manifest_of(parts, is_spread_), *lock_);
  if (!is_spread_) keep_newest(folder_, options_.step, options_.keep, *lock_);
  if (!is_spread_) lock_.reset();
}

void SharedStep::complete(const std::vector<std::string>& parts, const Ranks& ranks, const std::string& operation) {
  ranks.together(operation, [&]() -> std::string {
    complete_here(parts);
    return {};
  });
  if (!is_spread_) return;
  const auto lock = std::move(lock_);
  ranks.together(operation, [&]() -> std::string {
    if (lock) keep_newest(folder_, options_.step, options_.keep, *lock);
    return {};
  });
}

}  // namespace fsdp::state
