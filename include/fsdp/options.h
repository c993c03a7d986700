#pragma once
/// \file
/// What `fully_shard` can be told.

#include <ATen/core/Tensor.h>
#include <fsdp/device_mesh.h>
#include <fsdp/process_group.h>
#include <fsdp/wrap_policy.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// How much of the training state is sharded (stages of ZeRO, arXiv:1910.02054). Outside scopes parameters show this
/// rank's rows in all of them, so one program serves them all; with kReplicate the rows are all rows. On one transport
/// and mesh they train to the same bits. docs/choosing.md has what each of them moves and holds.
enum class Strategy : uint8_t {
  /// Parameters, gradients and optimizer state (ZeRO-3): whole parameters come and go, see Reshard.
  kFullShard,
  /// Gradients and optimizer state (ZeRO-2): what was gathered stays until rows are written.
  kShardGradOp,
  /// Optimizer state (ZeRO-1): whole parameters stay, also while rows are written; the first read after that refills
  /// them. Gradients stay whole until the backward that reduces them, see Group::no_sync.
  kShardOptimizer,
  /// Nothing (DDP): every rank has all rows, and nothing is gathered.
  kReplicate,
};

/// Prints its name, "kFullShard".
std::ostream& operator<<(std::ostream& out, Strategy strategy);

/// When whole parameters are freed after they were read in forward; for Strategy::kFullShard.
class Reshard {
 public:
  /// As soon as forward goes on to other groups; backward gathers again: two gathers per iteration. Least memory.
  static Reshard always() { return Reshard(true, std::nullopt); }
  /// After backward: one gather per iteration. All groups are whole between forward and backward.
  static Reshard never() { return Reshard(false, std::nullopt); }
  /// As `always`, but what is freed stays after forward, spread over each `ranks` neighbours of the ranks that rows are
  /// sharded over, among which backward gathers it (hpZ of ZeRO++, arXiv:2306.10209). Divides their number: 1 is
  /// `never`, all of them `always`. Ranks that share memory gather nothing, and keep nothing.
  static Reshard within(int ranks) { return Reshard(ranks != 1, ranks); }
  /// Whether they are freed after forward already.
  bool after_forward() const { return after_forward_; }
  /// The argument of `within`; none for the others.
  std::optional<int> ranks() const { return ranks_; }

 private:
  Reshard(bool after_forward, std::optional<int> ranks) : after_forward_(after_forward), ranks_(ranks) {}
  bool after_forward_;
  std::optional<int> ranks_;
};

/// Dtypes of compute, reduction and results, of the floating-point parameters of a group: Half, BFloat16, Float or
/// Double. Rows, gradients of rows and optimizer state keep the dtype that the parameters have. Buffers are not cast.
/// The same on every rank. docs/precision.md says what computes in which dtype.
///
///     fsdp::fully_shard(gpt, {.mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kBFloat16,
///                                                                     .reduce_dtype = torch::kFloat}});
struct MixedPrecisionPolicy {
  /// Of whole parameters, which are gathered in it, and of the floating-point operands of operators that read them.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// In which gradients are summed over ranks; unset: `param_dtype`.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Of the floating-point tensors that a call of the handle returns; unset: as forward made them.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Whether a call of the handle casts its floating-point arguments to `param_dtype`. Leave them as they are where
  /// forward computes with them before it comes to a parameter, as positional encodings do.
  bool cast_forward_inputs = true;
  /// Parameters that stay as they are: it is asked with the module that has the parameter, and the parameter's name
  /// there. Unset: those of modules with running statistics, such as BatchNorm.
  std::function<bool(const torch::nn::Module& module, const std::string& name)> keeps_precision = {};
};

/// Rows, gradients of rows and optimizer state in host memory, whole parameters on an accelerator. Optimizers step on
/// the CPU, any of them. Rows come to the accelerator ahead of the gather and gradients go to the host after the
/// reduction, beside what the accelerator computes; the host waits for them at the end of a backward. A UsageError
/// where parameters are on the CPU and stay there: see DiskOffloadPolicy. docs/memory.md has what is where.
///
///     fsdp::fully_shard(gpt, {.offload_policy = fsdp::CPUOffloadPolicy{}});
struct CPUOffloadPolicy {
  /// Rows and gradients lie in pinned memory, which the system cannot page out. Without it the host waits for each
  /// copy.
  bool pin_memory = true;
};

/// Rows, gradients of rows and optimizer state of groups beyond a limit in files that are mapped into memory, for
/// modules on the CPU (the idea of ZeRO-Infinity, arXiv:2104.07857). The same bits as without. Of optimizers those of
/// fsdp::optim keep their state there, those of torch::optim in memory. docs/memory.md has what is where.
///
///     options.disk_policy = fsdp::DiskOffloadPolicy{.folder = "/scratch", .host_limit_bytes = int64_t{8} << 30};
struct DiskOffloadPolicy {
  /// An existing folder, on a disk; each rank's files in it have no name and go with the rank. A disk with too little
  /// room is an Error of fully_shard on every rank, before any parameter has changed.
  std::string folder;
  /// Bytes of rows, gradients and optimizer state that one rank's groups may hold in memory; not negative. Groups are
  /// asked in the order in which they are made: one that no longer fits beside those before it is kept in a file.
  int64_t host_limit_bytes = 0;
};

/// How a module is sharded. Every field is optional. Values must be the same on every rank. What is not there yet is a
/// UsageError of fully_shard.
///
///     fsdp::fully_shard(gpt, {.reshard_after_forward = fsdp::Reshard::never()});
struct FullyShardOptions {
  /// How much of the training state is sharded.
  Strategy strategy = Strategy::kFullShard;
  /// The ranks, and what they are to each other; unset: one axis, the ranks of `process_group`. One axis is what the
  /// strategy does: its ranks share the rows out, or with kReplicate have them all. With the axes "replicate" and
  /// "shard" rows are shared out along "shard" and are the same along "replicate", whose ranks sum the gradients of
  /// rows (HSDP; MiCS, arXiv:2205.00119); kReplicate sums along both. Several axes are one
  /// with DeviceMesh::flatten. Groups of one model may have different meshes of the same ranks.
  std::optional<DeviceMesh> mesh = std::nullopt;
  /// Unset: always, but never for the outermost group of a scope, which backward needs first.
  std::optional<Reshard> reshard_after_forward = std::nullopt;
  /// Lower precision of compute and reduction; unset: everything has the dtype of the parameters.
  std::optional<MixedPrecisionPolicy> mp_policy = std::nullopt;
  /// Training state in host memory beside an accelerator; unset: it lies where the parameters are.
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Training state beyond a limit in files; unset: all of it in memory.
  std::optional<DiskOffloadPolicy> disk_policy = std::nullopt;
  /// Where whole parameters and the buffers under the module are to be; ignored parameters stay where they are. Of a
  /// parameter that is elsewhere only this rank's rows go there. Unset: everything stays where it is, but with an
  /// `offload_policy` whole values of what is on the CPU go to the process group's device (ProcessGroup::device).
  /// Throws UsageError for a device that is not there.
  std::optional<c10::Device> device = std::nullopt;
  /// How many bytes of whole parameters may be gathered ahead of the group that computes, beside it and the groups
  /// around it: as many groups as followed in the last pass, or as the prefetch lists name, and fit. 0: none. Unset:
  /// one group, whatever its size, or two while a group computes that lies around both. Not negative.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// Parameters under the module that are neither sharded nor reduced: they stay whole, each rank's its own.
  std::vector<at::Tensor> ignored_params = {};
  /// Makes groups of submodules too, innermost first; not for TorchScript modules and lists.
  AutoWrapPolicy auto_wrap_policy = {};
  /// The ranks to shard over, instead of a mesh; null: the default process group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  /// Every rank starts from rank 0's values of what is sharded and of the buffers under the module; ignored parameters
  /// stay each rank's own. The other ranks' need not have values: they may be on the meta device, e.g. made in
  /// meta_init while rank 0 reads a file, and come to lie on a device as rank 0's do. Without it the ranks' parameters
  /// have to be the same: a Mismatch names the first that is not.
  bool sync_module_states = false;
  /// Gives parameters and buffers on the meta device their values, on the CPU: it is called with each module under the
  /// given one that has some of its own, children before what contains them, as if these were whole. What it computes
  /// is put off as in fsdp::deferred_init. Unset: they stay on the meta device, see fsdp::to_empty. Not for
  /// TorchScript.
  ///
  ///     options.param_init_fn = [](torch::nn::Module& module) {
  ///       if (auto* linear = module.as<torch::nn::Linear>()) linear->reset_parameters();
  ///     };
  std::function<void(torch::nn::Module& module)> param_init_fn = {};
  /// Where every rank has all rows (Strategy::kReplicate): gradients of at most so many bytes are summed together, in
  /// the reverse order of the parameters, while backward goes on; of the first ones in a group 1 MiB. A parameter that
  /// is larger is summed alone. Smaller buckets begin earlier, larger ones move more bytes a second.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
  /// Every rank takes rank 0's buffers when an outermost ForwardScope opens in which gradients are recorded, as DDP
  /// does: running statistics of batches are then those of rank 0's. Unset: with Strategy::kReplicate. The setting of
  /// the module that a scope is opened on holds for all buffers under it.
  std::optional<bool> broadcast_buffers = std::nullopt;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
