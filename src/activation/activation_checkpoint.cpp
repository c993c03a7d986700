#include <fsdp/activation_checkpoint.h>

#include <utility>

#include "activation/segment.h"

namespace fsdp::detail {

struct CheckpointedForward::Running {
  Running(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs, std::unique_ptr<Recomputation> again)
      : segment(std::make_shared<activation::Segment>(options, inputs, std::move(again))),
        hooks([this] { return segment->leave_out(); }),
        results(segment->results(), activation::KeptResults::Pass::kForward) {}

  const std::shared_ptr<activation::Segment> segment;
  const runtime::SavedTensorScope hooks;
  const activation::KeptResults::Scope results;
};

CheckpointedForward::CheckpointedForward(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                                         std::unique_ptr<Recomputation> again)
    : running_(std::make_unique<Running>(options, inputs, std::move(again))) {}

CheckpointedForward::~CheckpointedForward() = default;

void CheckpointedForward::finish() { running_->segment->finish(); }

}  // namespace fsdp::detail
