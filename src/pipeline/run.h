#pragma once
/// \file
/// One pass of a batch through a schedule, on one rank.

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

/// What the ranks know of the inputs before a run begins: whether it trains, the inputs' dtype, the number of their
/// dims and their sizes.
using Signature = std::vector<int64_t>;

/// What a Pipeline is made of.
struct Plan {
  static const Plan& of(const Pipeline& pipeline) { return *pipeline.plan_; }

  std::vector<PipelineStage> stages;
  PipelineSchedule schedule, forwards;  ///< the second has the forwards of the first alone
  std::shared_ptr<ProcessGroup> group;
  std::shared_ptr<Communicator> ranks;    ///< those of the group, in an order of the pipeline's own
  std::map<Signature, Forms> known = {};  ///< what stages give for inputs of these sizes

  std::string where(const char* operation) const { return group->where(str_cat("Pipeline::", operation)); }
  bool is_first() const { return group->rank() == schedule.rank_of(0); }
  int last_rank() const { return schedule.rank_of(schedule.stages() - 1); }
  bool is_last() const { return group->rank() == last_rank(); }
  const PipelineStage& stage(int number) const { return stages[static_cast<size_t>(number / schedule.ranks)]; }
  /// The param groups of all sharded stages.
  std::vector<std::shared_ptr<runtime::ParamGroup>> groups() const;

  /// Cuts a batch into micro-batches, and these into slices, in the order in which they go forward.
  std::vector<at::Tensor> parts_of(const at::Tensor& batch) const;
  /// The place of an action's part among them.
  size_t part_of(const PipelineAction& action) const {
    return static_cast<size_t>(action.micro_batch * schedule.slices + action.slice);
  }
};

/// The trees of the modules of this rank's stages, by stage; of stages that are parts of one module by the first.
std::map<int, std::shared_ptr<const ModuleNode>> trees_of(const Plan& plan);

/// One thread.
class Run {
 public:
  /// All of them outlive it. `learns`: the forms are found out. `inputs`: the parts, on the rank of the first stage.
  Run(const Plan& plan, const PipelineSchedule& schedule, Forms& forms, bool learns, std::vector<at::Tensor> inputs);

  /// Runs this rank's actions. `root` gives what backward begins at, of the last stage's output of a part; without it
  /// there is no backward. Returns the last stage's outputs where there is none.
  using Root = std::function<at::Tensor(const at::Tensor& output, size_t part)>;
  std::vector<at::Tensor> run(const Root& root);

 private:
  // What forward leaves for backward: a leaf, and a tensor of the graph that leads to it.
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
  std::map<std::pair<int, size_t>, Passed> passed_;  // by stage and part
  std::map<StageAndMicroBatch, std::shared_ptr<parallel::TokenSlices>> slices_;
  std::map<int, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> compared_;  // by stage: inputs and outputs
};

}  // namespace fsdp::pipeline
