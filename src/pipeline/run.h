#pragma once
/// \file
/// The run of one batch through a schedule, on one rank.

#include <fsdp/pipeline.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/group_view.h"
#include "comm/core/text.h"
#include "parallel/token_slices.h"
#include "pipeline/messages.h"

namespace fsdp::pipeline {

/// Description of a run, which all ranks get before the run begins: whether it trains, and the dtype, the number of
/// dims and the sizes of the inputs.
using Signature = std::vector<int64_t>;

/// The members of a Pipeline.
struct Plan {
  static const Plan& of(const Pipeline& pipeline) { return *pipeline.plan_; }

  std::vector<PipelineStage> stages;
  PipelineSchedule schedule, forwards;  ///< `forwards` has only the forward actions of `schedule`
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Communicator> ranks;    ///< duplicate of the group's communicator that only the pipeline uses
  std::map<Signature, Forms> known = {};  ///< forms of the tensors between stages, for each signature that was run

  std::string where(const char* operation) const { return group->where(str_cat("Pipeline::", operation)); }
  bool is_first() const { return group->rank() == schedule.rank_of(0); }
  int last_rank() const { return schedule.rank_of(schedule.stages() - 1); }
  bool is_last() const { return group->rank() == last_rank(); }
  const PipelineStage& stage(int number) const { return stages[static_cast<size_t>(number / schedule.ranks)]; }
  /// Returns the param groups of this rank's sharded stages.
  std::vector<std::shared_ptr<runtime::ParamGroup>> groups() const;

  /// Returns the parts of a batch in the order in which forward takes them. A part is a micro-batch, or a slice of one.
  std::vector<at::Tensor> parts_of(const at::Tensor& batch) const;
  /// Returns the index of an action's part in the result of `parts_of`.
  size_t part_of(const PipelineAction& action) const {
    return static_cast<size_t>(action.micro_batch * schedule.slices + action.slice);
  }
};

/// Returns the module trees of this rank's stages, by the number of the stage. If several stages share one module, its
/// tree is listed under the first of them.
std::map<int, std::shared_ptr<const ModuleNode>> trees_of(const Plan& plan);

/// One run of a batch through a schedule. Only one thread may use it.
class Run {
 public:
  /// The Run keeps references to `plan`, `schedule` and `forms`. `learns` is true if the forms of the tensors between
  /// stages are not known yet; the run then stores them in `forms`. `inputs` are the parts of the batch on the rank of
  /// the first stage, and empty on other ranks.
  Run(const Plan& plan, const PipelineSchedule& schedule, Forms& forms, bool learns, std::vector<at::Tensor> inputs);

  /// Runs this rank's actions. Collective over the pipeline's axis. `root` takes the last stage's output for a part and
  /// returns the tensor at which backward begins; if `root` is empty, the run has no backward. A run without backward
  /// returns the outputs of the last stage on that stage's rank. Otherwise the result is an empty list.
  using Root = std::function<at::Tensor(const at::Tensor& output, size_t part)>;
  std::vector<at::Tensor> run(const Root& root);

 private:
  // Tensors that a forward keeps for its backward: `input` is a leaf of autograd, and `output` was computed from it.
  struct Passed {
    at::Tensor input, output;
  };
  using StageAndMicroBatch = std::pair<int, int>;

  at::Tensor forward(const PipelineAction& action, const Root& root);
  void backward(const PipelineAction& action);
  void require_slices_as_whole(const PipelineAction& last_slice, const at::Tensor& input, const at::Tensor& output);

  const Plan& plan_;
  const PipelineSchedule& schedule_;
  const bool learns_;
  const std::vector<at::Tensor> inputs_;
  Mailbox mailbox_;
  std::map<std::pair<int, size_t>, Passed> passed_;  // the key is the stage and the part
  std::map<StageAndMicroBatch, std::shared_ptr<parallel::TokenSlices>> slices_;
  std::map<int, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> compared_;  // inputs and outputs by stage
};

}  // namespace fsdp::pipeline
