#pragma once
/// \file
/// Checkpoints that are written while training goes on.

#include <fsdp/checkpoint.h>

#include <memory>
#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// The checkpoint that is being written, if any: at most one. Each rank has one; it belongs to one thread.
///
/// The destructor waits until this rank has written its files, and on rank 0 until the checkpoint is complete or cannot
/// be (10 minutes at most). It is not collective, so what went wrong is a warning there: call `wait` at the end.
class AsyncSave {
 public:
  /// Nothing is in flight.
  AsyncSave() noexcept;
  ~AsyncSave();
  /// Takes what `other` has in flight.
  AsyncSave(AsyncSave&& other) noexcept;
  /// Ends what this one has in flight as the destructor does, then takes what `other` has.
  AsyncSave& operator=(AsyncSave&& other) noexcept;

  /// Waits until the checkpoint is complete, at most for the process group's timeout; nothing is in flight then, also
  /// after an error. Without one in flight it does nothing. Collective. Throws an Error on every rank if a rank could
  /// not write, PeerLost if one is gone; earlier checkpoints are as they were.
  void wait();
  /// Whether a checkpoint was begun and `wait` not called since. The same on every rank.
  bool in_flight() const { return in_flight_ != nullptr; }

 private:
  struct InFlight;
  friend struct AsyncSaving;
  std::unique_ptr<InFlight> in_flight_;
};

/// Saves as save_checkpoint does, but returns when this rank's rows are copied to memory on the CPU, beside those that
/// it trains: one thread of each rank writes its files while training goes on. What `saving` has in flight is waited
/// for first; if that went wrong, its error is thrown and nothing is begun.
///
/// The threads communicate nothing. Each leaves a file when its rows are on the disk, and holds another one locked
/// until then; rank 0's thread waits for all of them and gives the checkpoint its name. So it is complete as soon as
/// all rows are on the disk, without a collective that training would have to wait for or could get out of order with,
/// and the end of any process at any point is seen: its lock is free and its file is not there. Then, and after errors,
/// the checkpoint is given up, earlier ones stay, and the next call with `saving` says why.
///
/// Memory: a copy of the rows that this rank writes, of parameters, buffers and optimizer state, until they are
/// written. The threads run at a lower priority than training. The folder is locked meanwhile: `saving.wait()` comes
/// before another kind of save to the same one.
///
/// Collective, outside scopes and backwards. Throws as save_checkpoint and AsyncSave::wait do.
///
///     fsdp::AsyncSave saving;
///     for (int64_t step = 1; step <= steps; ++step) {
///       train(model, optimizer, step);
///       if (step % 1000 == 0) fsdp::async_save_checkpoint(saving, "runs/a", model, &optimizer, {.step = step});
///     }
///     saving.wait();
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Group& model,
                           const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});
/// The same of a module, sharded or not, as save_checkpoint takes it.
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, torch::nn::Module& model,
                           const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
