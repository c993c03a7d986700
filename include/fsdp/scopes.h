#pragma once
/// \file
/// Scopes in which parameters are whole, or in which operators may use rows freely. Each guard belongs to the thread
/// that made it. Destroy guards in the reverse order of their construction.

#include <fsdp/group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

class OpenScope;

/// Forward scope: while it is open, forward code can read the whole parameters of all groups under a module; a group is
/// gathered when an operator is about to read one of its parameters. `model(...)` opens a scope by itself; use this
/// class to call other functions of the module. All ranks must open the same scopes: ranks that share memory wait for
/// each other when the outermost scope opens, and other ranks wait in the operators that read parameters. Closing a
/// scope is not collective. Scopes may be nested; the outermost scope frees memory when it closes.
///
///     fsdp::ForwardScope scope(model);
///     auto logits = model->decode(model->encode(x));
class [[nodiscard]] ForwardScope {
 public:
  /// Opens a scope. Throws UsageError while a LocalRows is open, and after an exception has ended a backward (see
  /// Group::reset_iter_state). Also throws UsageError once for each parameter that was added to the module after
  /// fully_shard and is in no group.
  explicit ForwardScope(const Group& model);
  ~ForwardScope();
  /// Closes the scope before its destructor does, for example before `optimizer.step()`. May be called again.
  void close();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  std::unique_ptr<OpenScope> open_;
};

/// Guard that lets all operators that autograd does not record use this rank's rows, and lets the program write rows
/// through raw pointers. Not collective, but in shared memory the constructor waits until no other rank can be in a
/// backward, i.e. until the other ranks open their next scope or write rows; until then they must not wait for this
/// rank. If whole parameters are kept between iterations (kShardGradOp, kShardOptimizer,
/// set_reshard_after_backward(false), unshard()), every rank must open a LocalRows, because the guard makes these
/// copies stale.
///
///     fsdp::LocalRows rows(model);
///     torch::NoGradGuard no_grad;
///     double own_sum = model->head->weight.sum().item<double>();  // another number on every rank
class [[nodiscard]] LocalRows {
 public:
  /// Opens the guard. Throws UsageError inside a scope or a backward.
  explicit LocalRows(const Group& model);
  ~LocalRows();
  LocalRows(const LocalRows&) = delete;
  LocalRows& operator=(const LocalRows&) = delete;

 private:
  const Group model_;
};

/// Options of summon_full_params.
struct SummonOptions {
  /// True if only rank 0 of the process group keeps whole parameters, for example to write them to a file. The other
  /// ranks take part in the gathers and hold one whole group at a time, but their parameters show rows. write_back()
  /// then throws UsageError.
  bool rank0_only = false;
};

/// Guard of summon_full_params. The program may write the whole parameters. Backward would not see these writes, so
/// operators that autograd would record throw UsageError.
class [[nodiscard]] SummonFullParams {
 public:
  /// Gathers all groups. Collective. Throws UsageError as ForwardScope does, and what Work::wait throws.
  explicit SummonFullParams(const Group& model, const SummonOptions& options = {});
  ~SummonFullParams();
  SummonFullParams(const SummonFullParams&) = delete;
  SummonFullParams& operator=(const SummonFullParams&) = delete;

  /// Copies the whole parameters into the rows; without this call, writes to whole parameters are lost. Each rank keeps
  /// its own rows, so every rank must have written the same values. Not collective. Throws UsageError on every rank if
  /// SummonOptions::rank0_only is true.
  void write_back();

 private:
  const Group model_;
  const bool rank0_only_;
  std::unique_ptr<OpenScope> scope_;  // null on a rank that keeps no whole parameters (rank0_only)
};

/// Gathers all groups under `model` and returns a guard that keeps them whole while it lives. Collective.
///
///     {
///       auto whole = fsdp::summon_full_params(model);
///       torch::NoGradGuard no_grad;
///       torch::nn::init::xavier_uniform_(model->head->weight);  // the same seed on every rank
///       whole.write_back();
///     }
///
///     {
///       auto whole = fsdp::summon_full_params(model, {.rank0_only = true});
///       if (fsdp::rank() == 0) std::cout << model->head->weight;
///     }
inline SummonFullParams summon_full_params(const Group& model, const SummonOptions& options = {}) {
  return SummonFullParams(model, options);
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
