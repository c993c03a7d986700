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

/// How much of the training state is sharded (stages of ZeRO, arXiv:1910.02054). Outside scopes parameters show this
/// rank's rows with every strategy (all rows with kReplicate), so a program need not depend on the strategy. On one
/// transport and mesh all strategies train to the same bits. docs/choosing.md compares their memory and traffic.
enum class Strategy : uint8_t {
  /// Shards parameters, gradients and optimizer state (ZeRO-3): parameters are gathered and freed, see Reshard.
  kFullShard,
  /// Shards gradients and optimizer state (ZeRO-2): gathered parameters stay until rows are written.
  kShardGradOp,
  /// Shards optimizer state (ZeRO-1): whole parameters stay allocated even while rows are written, and the next read
  /// gathers them again. Gradients stay whole until the backward that reduces them, see Group::no_sync.
  kShardOptimizer,
  /// Shards nothing (DDP): every rank has all rows, and nothing is gathered.
  kReplicate,
};

/// Prints the enumerator's name, e.g. "kFullShard".
std::ostream& operator<<(std::ostream& out, Strategy strategy);

/// When whole parameters are freed after forward; for Strategy::kFullShard.
class Reshard {
 public:
  /// Frees a group when forward goes on to other groups, and gathers it again in backward. Least memory, two gathers
  /// per iteration.
  static Reshard always() { return Reshard(true, std::nullopt); }
  /// Frees after backward. One gather per iteration; all groups are whole between forward and backward.
  static Reshard never() { return Reshard(false, std::nullopt); }
  /// Like `always`, but after forward each parameter stays spread over `ranks` neighbouring ranks, from which backward
  /// gathers it (hpZ of ZeRO++, arXiv:2306.10209). `ranks` must divide the number of ranks that rows are sharded over;
  /// 1 equals `never`, all of them `always`. Ranks that share memory gather nothing and keep nothing.
  static Reshard within(int ranks) { return Reshard(ranks != 1, ranks); }
  /// Whether parameters are freed after forward.
  bool after_forward() const { return after_forward_; }
  /// The argument of `within`; unset for `always` and `never`.
  std::optional<int> ranks() const { return ranks_; }

 private:
  Reshard(bool after_forward, std::optional<int> ranks) : after_forward_(after_forward), ranks_(ranks) {}
  bool after_forward_;
  std::optional<int> ranks_;
};

/// Dtypes of a group's floating-point parameters in compute and reduction, and of results: Half, BFloat16, Float or
/// Double. Rows, their gradients and optimizer state keep the parameters' original dtype. Buffers are not cast. Must be
/// the same on every rank. docs/precision.md lists what is computed in which dtype.
///
///     fsdp::fully_shard(gpt, {.mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kBFloat16,
///                                                                     .reduce_dtype = torch::kFloat}});
struct MixedPrecisionPolicy {
  /// Dtype of gathered parameters, and of the floating-point operands of operators that read them.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  /// Dtype in which gradients are reduced; unset: `param_dtype`.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  /// Dtype of the floating-point tensors that a call of the handle returns; unset: no cast.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  /// Whether a call of the handle casts its floating-point arguments to `param_dtype`. Turn it off if forward computes
  /// with arguments before it reads a parameter, as positional encodings do.
  bool cast_forward_inputs = true;
  /// Selects parameters that are not cast, by their module and their name in it. Unset: the parameters of modules with
  /// running statistics, such as BatchNorm.
  std::function<bool(const torch::nn::Module& module, const std::string& name)> keeps_precision = {};
};

/// Keeps rows, their gradients and optimizer state in host memory, and whole parameters on an accelerator; any
/// optimizer then steps on the CPU. Copies of rows before a gather and of gradients after a reduction overlap with the
/// accelerator's work; the host waits for them at the end of a backward. UsageError if whole parameters are on the CPU:
/// use DiskOffloadPolicy. See docs/memory.md.
///
///     fsdp::fully_shard(gpt, {.offload_policy = fsdp::CPUOffloadPolicy{}});
struct CPUOffloadPolicy {
  /// Whether rows and gradients are in pinned memory. Otherwise the host waits for each copy.
  bool pin_memory = true;
};

/// Keeps rows, their gradients and optimizer state in memory-mapped files, for modules on the CPU (the idea of
/// ZeRO-Infinity, arXiv:2104.07857). Groups of one model that fit into memory may be sharded without it. Results have
/// the same bits. Optimizers of fsdp::optim keep their state in files too, those of torch::optim in memory. See
/// docs/memory.md.
///
///     options.disk_policy = fsdp::DiskOffloadPolicy{.folder = "/scratch"};
struct DiskOffloadPolicy {
  /// An existing folder on a disk. Each rank's files in it have no name and vanish with the rank. If the disk has too
  /// little room, fully_shard throws Error on every rank, before any parameter has changed.
  std::string folder;
};

/// How fully_shard shards a module. Every field is optional and must be the same on every rank. fully_shard throws
/// UsageError for combinations that are not supported.
///
///     fsdp::fully_shard(gpt, {.reshard_after_forward = fsdp::Reshard::never()});
struct FullyShardOptions {
  /// How much of the training state is sharded.
  Strategy strategy = Strategy::kFullShard;
  /// The ranks to shard over; unset: one axis of the ranks of `process_group`. With one axis, its ranks share the rows,
  /// or with kReplicate each has all of them. With the axes "replicate" and "shard", rows are sharded along "shard" and
  /// equal along "replicate", whose ranks sum the gradients of rows (HSDP; MiCS, arXiv:2205.00119); kReplicate sums
  /// along both. DeviceMesh::flatten joins several axes to one. Groups of one model may have different meshes of the
  /// same ranks.
  std::optional<DeviceMesh> mesh = std::nullopt;
  /// Unset: `always`, except `never` for the outermost group of a scope, which backward needs first.
  std::optional<Reshard> reshard_after_forward = std::nullopt;
  /// Lower precision for compute and reduction; unset: the parameters' dtype.
  std::optional<MixedPrecisionPolicy> mp_policy = std::nullopt;
  /// Offload to host memory; unset: training state stays with the parameters.
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Offload to files; unset: all training state is in memory.
  std::optional<DiskOffloadPolicy> disk_policy = std::nullopt;
  /// Device of whole parameters and of the buffers under the module; ignored parameters do not move. Only this rank's
  /// rows of a parameter are copied to it. Unset: everything stays where it is, except that with `offload_policy` the
  /// whole values of CPU parameters use the process group's device (ProcessGroup::device). Throws UsageError for a
  /// device that does not exist.
  std::optional<c10::Device> device = std::nullopt;
  /// Limit, in bytes of whole parameters, of what is gathered ahead of the current group, beyond that group and the
  /// groups around it. Gathered ahead are the groups that followed in the last pass, or those of the prefetch lists, as
  /// many as fit; 0: none. Unset: one group of any size, or two while the current group encloses both. Must not be
  /// negative.
  std::optional<int64_t> max_prefetched_bytes = std::nullopt;
  /// Parameters under the module that are neither sharded nor reduced; each rank keeps its own whole values.
  std::vector<at::Tensor> ignored_params = {};
  /// Makes submodules groups of their own, innermost first. Not for TorchScript modules and lists of modules.
  AutoWrapPolicy auto_wrap_policy = {};
  /// The ranks to shard over if there is no mesh; null: the default process group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
  /// Whether every rank starts from rank 0's values of the sharded parameters and of the buffers under the module;
  /// ignored parameters keep each rank's values. On other ranks parameters and buffers may be on the meta device, for
  /// example made by meta_init while rank 0 reads a file; they then get memory on a device as on rank 0. If false, all
  /// ranks must have equal parameters; otherwise a Mismatch names the first that differs.
  bool sync_module_states = false;
  /// Initialises parameters and buffers on the meta device, on the CPU. It is called with each module that has such
  /// tensors of its own, children before their parents, and sees the tensors whole; their computation is deferred as in
  /// fsdp::deferred_init. Unset: they stay on the meta device, see fsdp::to_empty. Not for TorchScript.
  ///
  ///     options.param_init_fn = [](torch::nn::Module& module) {
  ///       if (auto* linear = module.as<torch::nn::Linear>()) linear->reset_parameters();
  ///     };
  std::function<void(torch::nn::Module& module)> param_init_fn = {};
  /// If every rank has all rows (Strategy::kReplicate): maximum bytes of gradients that are reduced together, in the
  /// reverse order of the parameters, during backward; a group's first bucket has at most 1 MiB. A larger parameter is
  /// reduced alone. Smaller buckets start earlier, larger ones have more bandwidth.
  int64_t bucket_cap_bytes = int64_t{25} << 20;
  /// Whether every rank copies rank 0's buffers, such as running statistics, when an outermost ForwardScope opens in
  /// grad mode, as in DDP. Unset: only with Strategy::kReplicate. The setting of the module that the scope is opened on
  /// applies to all buffers under it.
  std::optional<bool> broadcast_buffers = std::nullopt;
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
