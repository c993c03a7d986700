#pragma once
/// \file
/// A model whose layers lie on several ranks.

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

/// One stage of a pipeline: consecutive layers of a model, from one tensor to one tensor.
///
///     fsdp::PipelineStage stage(layers);         // a torch::nn::Sequential, or any module holder
///     fsdp::PipelineStage sharded_stage(model);  // an fsdp::Sharded, over another axis of the mesh
class PipelineStage {
 public:
  /// From what the stage before gives to what this one gives.
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  /// A stage that is a function without parameters.
  template <class Function>
    requires(std::convertible_to<Function, Forward> && !std::derived_from<Function, Group>)
  explicit PipelineStage(Function forward) : forward_(std::move(forward)) {}
  /// A stage that is a function and the module, sharded or not, whose parameters it uses: those that are clipped, saved
  /// and loaded with the pipeline. Several stages may use parts of one module.
  template <class Function, class Module>
  PipelineStage(Function forward, const Module& module) : forward_(std::move(forward)) {
    if constexpr (std::derived_from<Module, Group>)
      group_ = module;
    else if constexpr (requires { module.ptr(); })
      module_ = module.ptr();
    else
      module_ = module;
  }
  /// A sharded module. Its gradients are reduced once, with the last micro-batch.
  template <class Module>
    requires std::derived_from<Module, Group>
  explicit PipelineStage(Module module)
      : PipelineStage([module](const at::Tensor& x) mutable -> at::Tensor { return module(x); }, module) {}
  /// A module that is not sharded.
  template <class Module>
    requires(!std::convertible_to<Module, Forward> && !std::derived_from<Module, Group>)
  explicit PipelineStage(Module module)
      : PipelineStage([module](const at::Tensor& x) mutable -> at::Tensor { return module->forward(x); }, module) {}

  /// Runs the stage forward.
  at::Tensor operator()(const at::Tensor& input) const { return forward_(input); }
  /// The group of a sharded module.
  const std::optional<Group>& group() const { return group_; }
  /// The module if it is not sharded; null for a sharded one and for a function without parameters.
  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

 private:
  Forward forward_;
  std::optional<Group> group_;
  std::shared_ptr<torch::nn::Module> module_;
};

/// Cuts a model into consecutive stages of about equal numbers of parameters: the largest has as few as any cut allows.
/// The stages share the model's modules, so each rank keeps those that it runs and drops the rest. Not collective.
/// Throws UsageError for fewer layers than stages, and for a parameter that two stages would share: then each rank
/// would train a copy of its own. Use a parameter of its own in each of them, or put both uses into one stage.
///
///     auto stages = fsdp::split_stages(model, pipe.world_size());
///     fsdp::Pipeline pipeline({fsdp::PipelineStage(stages[pipe.rank()])}, schedule, pipe);
std::vector<torch::nn::Sequential> split_stages(const torch::nn::Sequential& model, int stages);
/// Cuts it in front of the layers with these numbers, which ascend.
std::vector<torch::nn::Sequential> split_stages_before(const torch::nn::Sequential& model,
                                                       const std::vector<int64_t>& first_layers);

/// How Pipeline::tune measures.
struct TuneOptions {
  int64_t granularity = 8;  ///< slices are multiples of so many tokens, but for the last one
  int rounds = 5;           ///< forwards of each slice, of which the fastest counts
  /// All ranks that run the same schedule, over other axes too, so that all of them get the same plan. Null: those of
  /// the pipeline's axis.
  std::shared_ptr<ProcessGroup> all_ranks = nullptr;
};

/// Runs a model whose stages lie on the ranks of one axis of a mesh, micro-batch by micro-batch, in the order of a
/// schedule. The gradients are those of the whole model on the whole batch. torch.distributed.pipelining calls the same
/// PipelineStage and Schedule.
///
/// With slices (terapipe_schedule) the tokens are dim 1 of inputs, targets and of what stages give. Attention of the
/// model as it is, scaled_dot_product_attention with is_causal, then meets the keys and values of the earlier slices,
/// and fsdp::positions counts from the first token of the sequence. The first run of each stage compares its slices
/// with the whole sequence, so what mixes tokens otherwise is found, unless the stage draws random numbers.
///
/// Every call is collective over the axis; one thread at a time. After an exception on one rank the others of the axis
/// throw too. Tensors between stages have any sizes and any dtype; the first step finds them out, and each further step
/// whose inputs have other sizes.
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
  /// The mean loss of a micro-batch's rows, or of one slice of them.
  using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

  /// `stages`: those of this rank, in the order of their numbers (PipelineSchedule::rank_of). `group`: the ranks of the
  /// pipeline's axis; null: the default one. Throws UsageError if the schedule is for another number of ranks, lacks an
  /// action or would never end (validate), and if this rank's stages are not as many as its chunks; Mismatch if ranks
  /// have other schedules.
  Pipeline(std::vector<PipelineStage> stages, PipelineSchedule schedule, std::shared_ptr<ProcessGroup> group = nullptr);
  ~Pipeline();
  /// The moved-from pipeline can only be destroyed or assigned to.
  Pipeline(Pipeline&&) noexcept;
  /// The moved-from pipeline can only be destroyed or assigned to.
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Runs forward and backward of one batch, cut along dim 0 into the schedule's micro-batches, whose sizes differ by
  /// one row at most; gradients are added to those of the parameters. `inputs` are read on the rank of the first stage,
  /// `targets` on that of the last one; other ranks may give undefined tensors. Returns the mean loss over all rows, on
  /// every rank, without a graph.
  ///
  /// Throws UsageError on all ranks for inputs that are undefined, have fewer rows than there are micro-batches or
  /// other tokens than the slices; on the rank that finds it, and Error on the others, for targets with another number
  /// of rows, for what a stage gives that has other sizes than before, and for what a stage or the loss throws;
  /// PeerLost if a rank is lost.
  at::Tensor step(const at::Tensor& inputs, const at::Tensor& targets, const Loss& loss);

  /// Runs forward alone, without a graph. Returns the outputs of all rows on the rank of the last stage, and an
  /// undefined tensor on the others.
  at::Tensor forward(const at::Tensor& inputs);

  /// Goes over to another schedule with as many ranks and chunks. Collective. Throws as the constructor does, and then
  /// keeps the schedule that it had.
  void set_schedule(PipelineSchedule schedule);

  /// Finds out in how many slices the sequences of a causal model should pass. Each stage runs forward for slices of
  /// several lengths, with tokens before them and without; the costs are fitted (fit_slice_cost), and plan_slices plans
  /// with those of the slowest stage, for as many micro-batches as the schedule has. `micro_batch`: inputs of one
  /// micro-batch with whole sequences, read on the rank of the first stage. The schedule stays as it is. The plan is
  /// for forward; backward takes the same slices.
  ///
  /// Throws UsageError for more than one stage on a rank, and for inputs without tokens along dim 1; what forward
  /// throws for a stage that cannot run in slices.
  ///
  ///     const auto tuning = pipeline.tune(inputs.narrow(0, 0, 2));
  ///     if (fsdp::rank() == 0) std::cout << tuning << '\n';
  ///     pipeline.set_schedule(fsdp::terapipe_schedule(4, micro_batches, tuning.plan.lengths));
  SliceTuning tune(const at::Tensor& micro_batch, const TuneOptions& options = {});

  /// Begins anew after an exception on any rank that all of them survived, with the stages' groups
  /// (Group::reset_iter_state). Collective over the axis and the ranks of these groups.
  void reset_iter_state();

  /// The parameters of this rank's stages, a tied one once: for an optimizer.
  std::vector<at::Tensor> parameters() const;

  /// The schedule of the constructor or of set_schedule.
  const PipelineSchedule& schedule() const;

 private:
  friend struct pipeline::Plan;
  std::unique_ptr<pipeline::Plan> plan_;
};

/// \name All stages together
/// These functions do for a pipeline what the functions of the same names do for a sharded model. Norms are over the
/// parameters of all stages: of a sharded stage those that are sharded, and of an unsharded one all. Each parameter
/// counts once, whichever axes of the mesh it is split over. Collective over the pipeline's axis and the ranks over
/// which its stages are sharded.
///
///     auto loss = pipeline.step(tokens, targets, mean_loss);
///     fsdp::clip_grad_norm_(pipeline, 1.0);
///     optimizer.step();
/// \{

/// See clip_grad.h.
double clip_grad_norm_(const Pipeline& pipeline, double max_norm, double norm_type = 2.0,
                       bool error_if_nonfinite = false);
/// See clip_grad.h.
[[nodiscard]] double get_total_norm(const Pipeline& pipeline, double norm_type = 2.0, bool error_if_nonfinite = false);
/// See norms.h.
[[nodiscard]] double norm(const Pipeline& pipeline, double p = 2.0);

/// Saves all stages into one checkpoint, as save_checkpoint of checkpoint.h saves a model. Parameters have the names
/// that they have in their stage's module; split_stages keeps those of the whole model. Any number of stages can load
/// the checkpoint, and so can a model that is no pipeline. `optimizer` has parameters of this rank's stages. Every rank
/// passes one or none does, and all have the same number of parameter groups. Collective over the default process
/// group, all of whose ranks run the pipeline or replicas of it. Throws UsageError on all ranks, before anything is
/// written, if two stages have different tensors of one name; and what save_checkpoint of a model throws.
///
///     fsdp::save_checkpoint("runs/a", pipeline, &optimizer, {.step = step});
void save_checkpoint(const std::string& folder, const Pipeline& pipeline,
                     const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});
/// The same while training goes on, see async_save.h.
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Pipeline& pipeline,
                           const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});
/// Loads this rank's stages from a checkpoint of the whole model, which a pipeline or a model has saved; see
/// checkpoint.h. Collective as save_checkpoint. `differing` lists what did not fit this rank's stages.
LoadedCheckpoint load_checkpoint(const std::string& folder, const Pipeline& pipeline,
                                 torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
