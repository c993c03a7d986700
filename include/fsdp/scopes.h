#pragma once
/// \file
/// Scopes in which parameters are whole, or in which rows may be used freely. Guards belong to one thread and must be
/// destroyed in the reverse order of their construction.

#include <fsdp/group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Lets forward code read the whole parameters of all groups under a module; each group is gathered when an operator is
/// about to read it. `model(...)` opens a scope; use this class to call anything else. All ranks must open the same
/// scopes: ranks that share memory wait for each other when the outermost scope opens, other ranks in the operators
/// that read parameters. Closing is not collective. Scopes may be nested; memory is freed by the outermost one.
///
///     fsdp::ForwardScope scope(model);
///     auto logits = model->decode(model->encode(x));
class [[nodiscard]] ForwardScope {
 public:
  /// Throws UsageError while a LocalRows is open, or a backward that an exception ended (see Group::reset_iter_state).
  /// Also throws it once for each parameter that was added to the module after fully_shard and is in no group.
  explicit ForwardScope(const Group& model);
  ~ForwardScope();
  /// Closes the scope early, for example before `optimizer.step()`. May be called again.
  void close();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Lets all operators that autograd does not record use this rank's rows, and lets raw pointers write them. Not
/// collective, but in shared memory it waits until no other rank can be in a backward, i.e. until they open their next
/// scope or write rows; they must not wait for this rank before that. If whole parameters are kept between iterations
/// (kShardGradOp, kShardOptimizer, set_reshard_after_backward(false), unshard()), every rank must open it, because it
/// invalidates these copies.
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

/// Options of summon_full_params.
struct SummonOptions {
  /// Whether only rank 0 of the process group keeps whole parameters, for example to write or print them. The other
  /// ranks take part in the gathers, hold one group at a time, and their parameters show rows. write_back() is refused.
  bool rank0_only = false;
};

/// Guard of summon_full_params. The whole parameters may be written. Backward would not see these writes, so operators
/// that autograd would record are refused.
class [[nodiscard]] SummonFullParams {
 public:
  /// Collective. Throws UsageError as ForwardScope does, and what Work::wait throws.
  explicit SummonFullParams(const Group& model, const SummonOptions& options = {});
  ~SummonFullParams();
  SummonFullParams(const SummonFullParams&) = delete;
  SummonFullParams& operator=(const SummonFullParams&) = delete;

  /// Copies whole parameters into the rows; without it writes are lost. Each rank keeps its own rows, so every rank
  /// must have written the same values. Not collective. With rank0_only it throws UsageError on every rank.
  void write_back();

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// Gathers all groups under `model` and keeps them whole while the guard lives. Collective.
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
