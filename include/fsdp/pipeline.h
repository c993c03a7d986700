#pragma once
/// \file
/// Pipeline parallelism: models whose layers lie on several ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/async_save.h>
#include <fsdp/group.h>
#include <fsdp/pipeline_schedule.h>
#include <fsdp/plan_slices.h>
#include <fsdp/process_group.h>
#include <torch/nn/modules/container/sequential.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

namespace pipeline {
struct Plan;
}

/// \addtogroup pipeline
/// \{

/// One stage of a pipeline: consecutive layers of a model that take one tensor and return one tensor.
///
///     fsdp::PipelineStage stage(layers);         // a torch::nn::Sequential, or any module holder
///     fsdp::PipelineStage sharded_stage(model);  // an fsdp::Sharded, over another axis of the mesh
class PipelineStage {
 public:
  /// Function that takes the result of the previous stage and returns this stage's result.
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  /// Makes a stage from a function without parameters.
  template <class Function>
    requires(std::convertible_to<Function, Forward> && !std::derived_from<Function, Group>)
  explicit PipelineStage(Function forward) : forward_(std::move(forward)) {}
  /// Makes a stage from a function and the module, sharded or not, that has the function's parameters. The pipeline
  /// clips, saves and loads the parameters of this module. Several stages may use parts of one module.
  template <class Function, class Module>
  PipelineStage(Function forward, const Module& module) : forward_(std::move(forward)) {
    if constexpr (std::derived_from<Module, Group>)
      group_ = module;
    else if constexpr (requires { module.ptr(); })
      module_ = module.ptr();
    else
      module_ = module;
  }
  /// Makes a stage from a sharded module. Its gradients are reduced once, with the last micro-batch.
  template <class Module>
    requires std::derived_from<Module, Group>
  explicit PipelineStage(Module module)
      : PipelineStage([module](const at::Tensor& x) mutable -> at::Tensor { return module(x); }, module) {}
  /// Makes a stage from a module that is not sharded.
  template <class Module>
    requires(!std::convertible_to<Module, Forward> && !std::derived_from<Module, Group>)
  explicit PipelineStage(Module module)
      : PipelineStage([module](const at::Tensor& x) mutable -> at::Tensor { return module->forward(x); }, module) {}

  /// Runs the stage's forward.
  at::Tensor operator()(const at::Tensor& input) const { return forward_(input); }
  /// Returns the group of a sharded module; unset for other stages.
  const std::optional<Group>& group() const { return group_; }
  /// Returns the module if it is not sharded; null for a sharded module and for a function without parameters.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  Forward forward_;
  std::optional<Group> group_;
  std::shared_ptr<torch::nn::Module> module_;
};

/// Cuts a model into consecutive stages with about equal numbers of parameters: the largest stage is as small as
/// possible. Returns all stages, which share the model's modules; each rank keeps the stages that it runs and drops the
/// others. Not collective. Throws UsageError for fewer layers than stages, and for a parameter that two stages would
/// share, because each of their ranks would train its own copy. Give each stage its own parameter, or put both uses
/// into one stage.
///
///     auto stages = fsdp::split_stages(model, pipe.world_size());
///     fsdp::Pipeline pipeline({fsdp::PipelineStage(stages[pipe.rank()])}, schedule, pipe);
std::vector<torch::nn::Sequential> split_stages(const torch::nn::Sequential& model, int stages);
/// Cuts the model before each layer whose number is in `first_layers`. The numbers must ascend.
std::vector<torch::nn::Sequential> split_stages_before(const torch::nn::Sequential& model,
                                                       const std::vector<int64_t>& first_layers);

/// Options of Pipeline::tune.
struct TuneOptions {
  int64_t granularity = 8;  ///< each slice except the last has a multiple of this number of tokens
  int rounds = 5;           ///< number of forwards of each slice; the fastest counts
  /// Process group of all ranks that need the same plan, including ranks along other axes of the mesh. If null, it is
  /// the group of the pipeline's axis.
  std::shared_ptr<ProcessGroup> all_ranks = nullptr;
};

/// Runs a model whose stages lie on the ranks of one axis of a mesh: micro-batches pass from stage to stage in the
/// order of a schedule. The gradients are those of the whole model on the whole batch. torch.distributed.pipelining has
/// the same concepts, PipelineStage and Schedule.
///
/// With slices of tokens (terapipe_schedule), dim 1 of inputs, targets and the results of stages must be the tokens.
/// Calls of scaled_dot_product_attention with is_causal in the unchanged model then also use the keys and values of
/// earlier slices, and fsdp::positions counts from the first token of the sequence. In its first run each stage
/// compares the results of its slices with the result of the whole sequence. It throws if they differ, because the
/// stage then mixes tokens without such calls. Stages that draw random numbers are not checked.
///
/// Every function except `parameters` and `schedule` is collective over the axis. One thread at a time may use a
/// pipeline. After an exception on one rank the other ranks of the axis throw too. Tensors between stages may have any
/// sizes and dtypes; ranks exchange the sizes in the first step and whenever inputs have new sizes.
///
///     auto mesh = fsdp::init_device_mesh({2, 2}, {"data", "pipe"});
///     auto pipe = mesh.process_group("pipe");
///     auto stage = fsdp::fully_shard(stages[pipe->rank()], {.mesh = mesh["data"]});
///     fsdp::Pipeline pipeline({fsdp::PipelineStage(stage)}, fsdp::one_forward_one_backward_schedule(2, 8), pipe);
///     auto loss = pipeline.step(tokens, targets, [](auto output, auto target) {
///       return torch::nn::functional::cross_entropy(output.flatten(0, 1), target.flatten());
///     });
///     optimizer.step();
class Pipeline {
 public:
  /// Function that returns the mean loss of a micro-batch's rows, or of one slice of these rows.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  /// Makes a pipeline. `stages` are the stages of this rank, in the order of their numbers (PipelineSchedule::rank_of).
  /// `group` has the ranks of the pipeline's axis; if null, the default process group. Throws UsageError if the
  /// schedule is for another number of ranks or of stages on each rank, lacks an action or would never end (see
  /// validate). Throws Mismatch if ranks have different schedules.
  Pipeline(std::vector<PipelineStage> stages, PipelineSchedule schedule, std::shared_ptr<ProcessGroup> group = nullptr);
  ~Pipeline();
  /// The moved-from pipeline can only be destroyed or assigned to.
  Pipeline(Pipeline&&) noexcept;
  /// The moved-from pipeline can only be destroyed or assigned to.
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Runs forward and backward of one batch and adds the gradients to those of the parameters. The batch is cut along
  /// dim 0 into the schedule's micro-batches; their numbers of rows differ by at most one. Only the rank of the first
  /// stage reads `inputs`, and only the rank of the last stage reads `targets`; other ranks may pass undefined tensors.
  /// Returns the mean loss over all rows, on every rank, without a graph.
  ///
  /// Throws UsageError on all ranks for inputs that are undefined, have fewer rows than there are micro-batches, or
  /// have another number of tokens than the slices together. Throws UsageError on the last stage's rank for targets
  /// with another number of rows than the inputs, and on a stage's rank if the stage returns other sizes than before
  /// for inputs of the same sizes. If a rank throws one of these or what its stage or the loss throws, the other ranks
  /// throw Error. Throws PeerLost if a rank is lost.
  at::Tensor step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);

  /// Runs forward only, without a graph. Returns the outputs of all rows on the rank of the last stage, and an
  /// undefined tensor on other ranks.
  at::Tensor forward(const at::Tensor& inputs);

  /// Changes to another schedule with the same numbers of ranks and of stages on each rank. Collective. Throws what the
  /// constructor throws; the pipeline then keeps its old schedule.
  void set_schedule(PipelineSchedule schedule);

  /// Plans from measurements into which slices the sequences of a causal model should be cut. Each stage runs forward
  /// for slices of several lengths, with and without tokens before them. fit_slice_cost fits a cost to these times, and
  /// plan_slices plans with the cost of the slowest stage, for as many micro-batches as the schedule has. `micro_batch`
  /// is the input of one micro-batch with whole sequences; only the rank of the first stage reads it. The schedule does
  /// not change. The plan is made for forward; backward uses the same slices. Collective.
  ///
  /// Throws UsageError if a rank has more than one stage, and for inputs without tokens along dim 1. Also throws what
  /// `forward` throws, for example for a stage that cannot run in slices.
  ///
  ///     const auto tuning = pipeline.tune(inputs.narrow(0, 0, 2));
  ///     if (fsdp::rank() == 0) std::cout << tuning << '\n';
  ///     pipeline.set_schedule(fsdp::terapipe_schedule(4, micro_batches, tuning.plan.lengths));
  SliceTuning tune(const at::Tensor& micro_batch, const TuneOptions& options = {});

  /// Recovers from an exception on any rank, if no rank is lost. Also calls Group::reset_iter_state of the stages'
  /// groups. Collective over the axis and the ranks of these groups.
  void reset_iter_state();

  /// Returns the parameters of this rank's stages, for an optimizer. A tied parameter appears once.
  std::vector<at::Tensor> parameters() const;

  /// Returns the current schedule.
  const PipelineSchedule& schedule() const;

 private:
  friend struct pipeline::Plan;
  std::unique_ptr<pipeline::Plan> plan_;
};

/// \name All stages together
/// These functions do for a pipeline what the functions of the same names do for a sharded model. Norms are over the
/// parameters of all stages: the sharded parameters of a sharded stage, and all parameters of an unsharded stage. Each
/// parameter counts once, whichever axes of the mesh it is split over. Collective over the pipeline's axis and the
/// ranks over which its stages are sharded.
///
///     auto loss = pipeline.step(tokens, targets, mean_loss);
///     fsdp::clip_grad_norm_(pipeline, 1.0);
///     optimizer.step();
/// \{

/// Clips the gradients of all stages, see clip_grad.h.
double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type = 2.0,
                       bool error_if_nonfinite = false);
/// Returns the norm of the gradients of all stages, see clip_grad.h.
[[nodiscard]] double get_total_norm(const Pipeline& pipeline, double norm_type = 2.0, bool error_if_nonfinite = false);
/// Returns the norm of the parameters of all stages, see norms.h.
[[nodiscard]] double norm(const Pipeline& pipeline, double p = 2.0);

/// Saves all stages into one checkpoint, as save_checkpoint of checkpoint.h saves a model. The checkpoint has the
/// parameters' names in the modules of the stages; split_stages keeps the names of the whole model. A pipeline with any
/// number of stages can load the checkpoint, and so can a model without a pipeline. `optimizer` has the parameters of
/// this rank's stages. Either every rank passes an optimizer or no rank does, and all optimizers have the same number
/// of parameter groups. Collective over the default process group; each of its ranks must run the pipeline or a replica
/// of it. Throws UsageError on all ranks, before anything is written, if two stages have different tensors of one name.
/// Also throws what save_checkpoint of a model throws.
///
///     fsdp::save_checkpoint("runs/a", pipeline, &optimizer, {.step = step});
void save_checkpoint(const std::string& folder, const Pipeline& pipeline,
                     const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});
/// Saves all stages while training continues, see async_save.h.
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Pipeline& pipeline,
                           const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});
/// Loads this rank's stages from a checkpoint of the whole model that a pipeline or a model has saved, see
/// checkpoint.h. LoadedCheckpoint::differing lists the differences from this rank's stages. Collective over the default
/// process group.
LoadedCheckpoint load_checkpoint(const std::string& folder, const Pipeline& pipeline,
                                 torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
