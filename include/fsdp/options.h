#pragma once
/// \file
/// Options of `fully_shard`.

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

/// Part of the training state that is sharded (stages of ZeRO, arXiv:1910.02054). Outside scopes parameters show this
/// rank's rows with every strategy (all rows with kReplicate), so the same program works with every strategy. With the
/// same backend and mesh all strategies give the same bits. docs/choosing.md compares their memory and traffic.
enum class Strategy : uint8_t {
  /// Shards parameters, gradients and optimizer state (ZeRO-3). Whole parameters are gathered before use and freed
  /// afterwards, see Reshard.
  kFullShard,
  /// Shards gradients and optimizer state (ZeRO-2). Gathered parameters stay in memory until the rows are next written,
  /// for example by the optimizer's step.
  kShardGradOp,
  /// Shards optimizer state (ZeRO-1). Whole parameters stay allocated even while rows are written, and the next read
  /// gathers them again. Gradients stay whole until a backward reduces them, see Group::no_sync.
  kShardOptimizer,
  /// Shards nothing (DDP). Every rank has all rows, and nothing is gathered.
  kReplicate,
};

/// Prints the enumerator's name, e.g. "kFullShard".
std::ostream& operator<<(std::ostream& out, Strategy strategy);

/// Choice of when whole parameters are freed, for Strategy::kFullShard.
class Reshard {
 public:
  /// Frees a group when forward goes on to other groups, and gathers it again in backward. This choice takes the least
  /// memory and two gathers per iteration.
  static Reshard always() { return Reshard(true, std::nullopt); }
  /// Frees a group after backward. This choice takes one gather per iteration, and all groups are whole between forward
  /// and backward.
  static Reshard never() { return Reshard(false, std::nullopt); }
  /// Frees a group as `always` does, but after forward each rank keeps a part of each parameter, so that backward
  /// gathers it from `ranks` neighbouring ranks only (hpZ of ZeRO++, arXiv:2306.10209). `ranks` must divide the number
  /// of ranks that rows are sharded over; `within(1)` is the same as `never`, and `within` of all ranks the same as
  /// `always`. Ranks that share memory gather nothing and keep nothing.
  static Reshard within(int ranks) { return Reshard(ranks != 1, ranks); }
  /// Returns true if parameters are freed after forward.
  bool after_forward() const { return after_forward_; }
  /// Returns the argument of `within`; unset for `always` and `never`.
  std::optional<int> ranks() const { return ranks_; }

 private:
  Reshard(bool after_forward, std::optional<int> ranks) : after_forward_(after_forward), ranks_(ranks) {}
  bool after_forward_;
  std::optional<int> ranks_;
};

/// Dtypes of a group's floating-point parameters in compute and reduction, and of results: Half, BFloat16, Float or
/// Double. Rows, their gradients and optimizer state keep the parameters' original dtype. Buffers are not cast. The
/// policy must be the same on every rank. docs/precision.md lists the dtype of each computation.
///
///     fsdp::fully_shard(gpt, {.mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kBFloat16,
///                                                                     .reduce_dtype = torch::kFloat}});
struct MixedPrecisionPolicy {
  /// Dtype of gathered parameters, and of the floating-point operands of operators that read them; if unset, the
  /// parameters' dtype.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Dtype in which gradients are reduced; if unset, `param_dtype`.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Dtype of the floating-point tensors that a call of the handle returns; if unset, they are not cast.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// True if a call of the handle casts its floating-point arguments to `param_dtype`. Set it to false if forward
  /// computes with arguments before it reads a parameter, as positional encodings do.
  bool cast_forward_inputs = true;
  /// Function that gets a module and the name of a parameter in it, and returns true if the parameter is not cast. If
  /// unset, the parameters of modules with running statistics, such as BatchNorm, are not cast.
  std::function<bool(const torch::nn::Module& module, const std::string& name)> keeps_precision = {};
};

/// Policy that keeps rows, their gradients and optimizer state in host memory, and whole parameters on an accelerator.
/// Any optimizer then steps on the CPU. Copies of rows before a gather and of gradients after a reduction overlap with
/// the accelerator's work; the host waits for them at the end of a backward. fully_shard throws UsageError if whole
/// parameters are on the CPU; use DiskOffloadPolicy there. See docs/memory.md.
///
///     fsdp::fully_shard(gpt, {.offload_policy = fsdp::CPUOffloadPolicy{}});
struct CPUOffloadPolicy {
  /// True if rows and gradients are in pinned memory. If false, the host waits for each copy.
  bool pin_memory = true;
};

/// Policy that keeps the rows of modules on the CPU, their gradients and optimizer state in memory-mapped files (the
/// idea of ZeRO-Infinity, arXiv:2104.07857). Other groups of the same model may be sharded without this policy if they
/// fit into memory. Results have the same bits as without the policy. Optimizers of fsdp::optim keep the state of these
/// groups in files too; optimizers of torch::optim keep it in memory. See docs/memory.md.
///
///     options.disk_policy = fsdp::DiskOffloadPolicy{.folder = "/scratch"};
struct DiskOffloadPolicy {
  /// Path of an existing folder on a disk. Each rank's files in this folder have no name and vanish when the rank's
  /// process ends. If the disk has too little room, fully_shard throws Error on every rank, before any parameter has
  /// changed.
  std::string folder;
};

/// Options that say how fully_shard shards a module. Every field is optional and must be the same on every rank.
/// fully_shard throws UsageError for combinations that are not supported.
///
///     fsdp::fully_shard(gpt, {.reshard_after_forward = fsdp::Reshard::never()});
struct FullyShardOptions {
  /// Part of the training state that is sharded.
  Strategy strategy = Strategy::kFullShard;
  /// Mesh of the ranks to shard over; if unset, a mesh with one axis of all ranks of `process_group`. In a mesh of one
  /// axis rows are sharded over the axis; with kReplicate every rank has all rows. In a mesh of the axes "replicate"
  /// and "shard" rows are sharded along "shard" and equal along "replicate"; ranks along "replicate" sum the gradients
  /// of rows (HSDP; MiCS, arXiv:2205.00119). With kReplicate gradients are summed along both axes. DeviceMesh::flatten
  /// joins several axes into one. Groups of one model may have different meshes of the same ranks.
  std::optional<DeviceMesh> mesh = std::nullopt;
  /// Choice of when whole parameters are freed. If unset, the outermost group of a scope uses Reshard::never, because
  /// backward needs that group first, and all other groups use Reshard::always.
  std::optional<Reshard> reshard_after_forward = std::nullopt;
  /// Dtypes of compute and reduction; if unset, the parameters' dtype.
  std::optional<MixedPrecisionPolicy> mp_policy = std::nullopt;
  /// Offload of training state to host memory; if unset, training state stays on the parameters' device.
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Offload of training state to files; if unset, all training state is in memory.
  std::optional<DiskOffloadPolicy> disk_policy = std::nullopt;
  /// Device of whole parameters and of the buffers under the module; ignored parameters do not move. Only this rank's
  /// rows of a parameter are copied to it. If unset, all tensors stay on their device, except that with
  /// `offload_policy` the whole values of CPU parameters are on the process group's device (ProcessGroup::device).
  /// Throws UsageError for a device that does not exist.
  std::optional<c10::Device> device = std::nullopt;
  /// Maximum number of bytes of whole parameters that are gathered ahead, beside the current group and the groups that
  /// enclose it; must not be negative. Of the groups that followed in the last pass, or of those in the prefetch lists,
  /// as many as fit are gathered ahead; with 0 none are. If unset, it gathers all groups of a prefetch list; without a
  /// list it gathers one group of any size ahead, or two while the current group encloses both.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// Parameters under the module that are neither sharded nor reduced; each rank keeps its own whole values.
  std::vector<at::Tensor> ignored_params = {};
  /// Policy that makes submodules groups of their own, innermost first. It cannot be used for TorchScript modules and
  /// lists of modules.
  AutoWrapPolicy auto_wrap_policy = {};
  /// Process group to shard over if `mesh` is unset; if null, the default process group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  /// True if every rank starts from rank 0's values of the sharded parameters and of the buffers under the module;
  /// ignored parameters keep each rank's values. On ranks other than rank 0, parameters and buffers may be on the meta
  /// device, for example if meta_init made them while rank 0 reads a file; they then get memory on the same kind of
  /// device as on rank 0. If false, all ranks must have equal parameters; otherwise a Mismatch names the first
  /// parameter that differs.
  bool sync_module_states = false;
  /// Function that initialises parameters and buffers that are on the meta device; afterwards they are on the CPU.
  /// fully_shard calls it with each module that has such tensors of its own, children before their parents. The
  /// function sees whole tensors, and its computation is deferred as in fsdp::deferred_init. If unset, the tensors stay
  /// on the meta device, see fsdp::to_empty. TorchScript modules do not support this option.
  ///
  ///     options.param_init_fn = [](torch::nn::Module& module) {
  ///       if (auto* linear = module.as<torch::nn::Linear>()) linear->reset_parameters();
  ///     };
  std::function<void(torch::nn::Module& module)> param_init_fn = {};
  /// Maximum number of bytes of a bucket, i.e. of gradients that backward reduces together, if every rank has all rows
  /// (Strategy::kReplicate). Buckets follow the reverse order of the parameters; a group's first bucket has at most 1
  /// MiB. A larger parameter is reduced alone. The reduction of a smaller bucket starts earlier, and that of a larger
  /// one uses more of the bandwidth.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
  /// True if every rank copies rank 0's buffers, such as running statistics, when an outermost ForwardScope opens in
  /// grad mode, as in DDP. If unset, it is true only with Strategy::kReplicate. The setting of the module on which the
  /// scope is opened applies to all buffers under that module.
  std::optional<bool> broadcast_buffers = std::nullopt;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
