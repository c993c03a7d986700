#pragma once
/// \file
/// Stretches of a program in which parameters are whole, or may be treated as rows. Guards belong to one thread and
/// close last in, first out.

#include <fsdp/group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Shows whole parameters of all groups under a module: forward code may read them. Parameters come to memory when an
/// operator is about to read them. `model(...)` opens one; this is for every other way in. Open it on every rank alike:
/// where ranks share memory they meet when the outermost one opens, elsewhere at the operators that read parameters.
/// Closing is not collective. Scopes nest; the outermost decides when memory goes.
///
///     fsdp::ForwardScope scope(model);
///     auto logits = model->decode(model->encode(x));
class [[nodiscard]] ForwardScope {
 public:
  /// Throws UsageError while a backward that an exception ended is open (see Group::reset_iter_state), or a LocalRows;
  /// and once, naming it, for a parameter that came under the module after fully_shard and is in no
  /// group.
  explicit ForwardScope(const Group& model);
  ~ForwardScope();
  /// Ends the scope before the guard goes, e.g. in front of `optimizer.step()`. Idempotent.
  void close();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Lets every operator that autograd does not record compute on this rank's rows, and raw pointers write them.
/// Not collective; but over shared memory it waits for peers that may still run a backward, until they open their next
/// scope or write rows: they must not wait for this rank before that. And where copies of whole parameters are kept
/// from one iteration to the next (kShardGradOp, kShardOptimizer, set_reshard_after_backward(false), unshard()) every
/// rank opens it, because it makes them stale.
///
///     fsdp::LocalRows rows(model);
///     torch::NoGradGuard no_grad;
///     double own_sum = model->head->weight.sum().item<double>();  // another number on every rank
class [[nodiscard]] LocalRows {
 public:
  /// Throws UsageError inside a scope or a backward.
  explicit LocalRows(const Group& model);
  ~LocalRows();
  LocalRows(const LocalRows&) = delete;
  LocalRows& operator=(const LocalRows&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// How whole parameters are summoned.
struct SummonOptions {
  /// Rank 0 of the process group alone keeps them, e.g. to write or print them: the other ranks take part in gathering
  /// group by group, hold one group at a time meanwhile, and their parameters show rows. Nothing can be written back.
  bool rank0_only = false;
  /// Whole values lie in host memory: one group at a time is whole on the device, and parameters that show whole values
  /// are tensors on the CPU. Where they are on the CPU anyway, it changes nothing.
  bool offload_to_cpu = false;
};

/// Whole parameters, all at once, which may be written; backward would not see them, so operators that autograd would
/// record are refused. See summon_full_params.
class [[nodiscard]] SummonFullParams {
 public:
  /// Collective. Throws UsageError as ForwardScope does, and what Work::wait throws.
  explicit SummonFullParams(const Group& model, const SummonOptions& options = {});
  ~SummonFullParams();
  SummonFullParams(const SummonFullParams&) = delete;
  SummonFullParams& operator=(const SummonFullParams&) = delete;

  /// Copies the whole parameters into the rows; without it, what was written is lost. Each rank keeps its own rows, so
  /// every rank must have written the same values. Not collective. Throws UsageError with rank0_only, on every rank:
  /// the others would keep what they had.
  void write_back();

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Gathers every group under `model` and keeps it whole while the guard lives: all whole parameters at once.
/// Collective.
///
///     {
///       auto whole = fsdp::summon_full_params(model);
///       torch::NoGradGuard no_grad;
///       torch::nn::init::xavier_uniform_(model->head->weight);  // the same seed on every rank
///       whole.write_back();
///     }
///
///     {
///       auto whole = fsdp::summon_full_params(model, {.rank0_only = true, .offload_to_cpu = true});
///       if (fsdp::rank() == 0) std::cout << model->head->weight;
///     }
inline SummonFullParams summon_full_params(const Group& model, const SummonOptions& options = {}) {
  return SummonFullParams(model, options);
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
