#include "runtime/placement.h"

#include <fsdp/error.h>

#include <exception>
#include <optional>
#include <utility>

#include "comm/core/check.h"
#include "comm/group/attachment.h"

namespace fsdp::runtime {

Placement::Placement(std::shared_ptr<ProcessGroup> ranks, std::shared_ptr<ProcessGroup> shard, Axes replicate)
    : ranks_(std::move(ranks)), shard_(std::move(shard)), replicate_(std::move(replicate)) {
  std::erase_if(replicate_, [](const auto& axis) { return axis->world_size() == 1; });
  int ranks_of_axes = shard_->world_size();
  for (const auto& axis : replicate_) ranks_of_axes *= axis->world_size();
  TORCH_INTERNAL_ASSERT(ranks_of_axes == ranks_->world_size(), "axes of ", ranks_of_axes, " ranks in a placement of ",
                        ranks_->world_size());
  auto before = shard_->world_size() > 1 ? shard_ : nullptr;
  for (const auto& axis : replicate_) {
    further_steps_.push_back(before ? Attachment::queue_for(*axis, before, "further steps")
                                    : std::shared_ptr<Communicator>(axis, &axis->reductions()));
    before = axis;
  }
}

int Placement::replica() const {
  int number = 0, stride = 1;
  for (const auto& axis : replicate_) {
    number += axis->rank() * stride;
    stride *= axis->world_size();
  }
  return number;
}

std::vector<const ProcessGroup*> Placement::process_groups() const {
  std::vector<const ProcessGroup*> groups{ranks_.get()};
  if (shard_ != ranks_) groups.push_back(shard_.get());
  for (const auto& axis : replicate_)
    if (axis != ranks_) groups.push_back(axis.get());
  for (const auto& axis : {within, tensor_axis, pipe_axis})
    if (axis) groups.push_back(axis.get());
  return groups;
}

void Placement::fail(const std::string& operation, const std::string& error) const {
  for (const auto* group : process_groups()) group->communicator().fail(operation, error);
}

void fail_all(const std::vector<const ProcessGroup*>& groups, const std::string& operation) {
  const auto tell = [&](const std::exception& error, std::optional<int> lost) {
    for (const auto* group : groups) group->communicator().fail(operation, what_without_backtrace(error), lost);
  };
  try {
    throw;
  } catch (const PeerLost& error) {
    tell(error, error.rank());
  } catch (const std::exception& error) {
    tell(error, std::nullopt);
  }
}

void Placement::progress() const {
  shard_->reductions().progress();
  for (const auto& steps : further_steps_) steps->progress();
}

}  // namespace fsdp::runtime
