#include "runtime/placement.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::runtime {

Placement::Placement(std::shared_ptr<ProcessGroup> ranks, std::shared_ptr<ProcessGroup> shard,
                     std::shared_ptr<ProcessGroup> replicate)
    : ranks_(std::move(ranks)), shard_(std::move(shard)), replicate_(std::move(replicate)) {
  if (replicate_ && replicate_->world_size() == 1) replicate_ = nullptr;
  TORCH_INTERNAL_ASSERT(shard_->world_size() * replicas() == ranks_->world_size(), "a placement of ",
                        shard_->world_size(), " x ", replicas(), " ranks on ", ranks_->world_size());
}

std::vector<const ProcessGroup*> Placement::process_groups() const {
  std::vector<const ProcessGroup*> groups{ranks_.get()};
  if (shard_ != ranks_) groups.push_back(shard_.get());
  if (replicate_ && replicate_ != ranks_) groups.push_back(replicate_.get());
  return groups;
}

void Placement::fail(const std::string& operation, const std::string& error) const {
  for (const auto* group : process_groups()) group->communicator().fail(operation, error);
}

void Placement::progress() const {
  shard_->reductions().progress();
  if (replicate_) replicate_->reductions().progress();
}

}  // namespace fsdp::runtime
