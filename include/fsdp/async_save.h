#pragma once
/// \file
/// Checkpoints that are written in the background while training continues.

#include <fsdp/checkpoint.h>

#include <memory>
#include <string>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// Owner of the asynchronous save that is in flight on this rank; there is at most one. Use it from one thread.
///
/// The destructor waits until this rank has written its files; on rank 0 it also waits up to 10 minutes for the other
/// ranks' files to complete the checkpoint. The destructor is not collective and reports errors as warnings only, so
/// call `wait` at the end. A checkpoint whose ranks write to different disks is completed only by `wait`.
class AsyncSave {
 public:
  /// Makes an object that has no save in flight.
  AsyncSave() noexcept;
  ~AsyncSave();
  /// Takes over the save that `other` has in flight.
  AsyncSave(AsyncSave&& other) noexcept;
  /// Finishes its own save as the destructor does, then takes over the save of `other`.
  AsyncSave& operator=(AsyncSave&& other) noexcept;

  /// Waits until the checkpoint is complete, but for other ranks no longer than the process group's timeout. Afterwards
  /// no save is in flight, even after an error. Does nothing if no save is in flight. Collective. Every rank throws
  /// Error if a rank could not write its files, and PeerLost if a rank is gone. Earlier checkpoints do not change.
  void wait();
  /// Returns true if a save has begun and `wait` has not been called since. The result is the same on every rank.
  bool in_flight() const { return in_flight_ != nullptr; }

 private:
  struct InFlight;
  friend struct AsyncSaving;
  std::unique_ptr<InFlight> in_flight_;
};

/// Saves as save_checkpoint does, but returns when this rank's rows are copied to CPU memory; a background thread of
/// each rank writes the files while training continues. If `saving` has a save in flight, the call first waits for that
/// save; if that save failed, the call throws its error and begins no new one.
///
/// The background threads run no collectives. While a rank's thread writes rows, it holds a file lock; when the rows
/// are on disk, it writes a small file beside them. Rank 0's thread waits for these small files and then gives the
/// checkpoint its final name. If a process ends early, its lock is free and its small file is missing, so rank 0
/// abandons the checkpoint. After that, or after an error, earlier checkpoints are as they were, and the next call with
/// `saving` throws an Error that says why.
///
/// Until the files are written, each rank holds a copy of the parameters, buffers and optimizer state that it writes.
/// The background threads run at a lower priority. The folder stays locked, so call `saving.wait()` before you save to
/// the same folder in another way.
///
/// Collective. Call it outside scopes and backwards. Throws what save_checkpoint and AsyncSave::wait throw.
///
///     fsdp::AsyncSave saving;
///     for (int64_t step = 1; step <= steps; ++step) {
///       train(model, optimizer, step);
///       if (step % 1000 == 0) fsdp::async_save_checkpoint(saving, "runs/a", model, &optimizer, {.step = step});
///     }
///     saving.wait();
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Group& model,
                           const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});
/// Saves a module, sharded or not, in the same way.
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, torch::nn::Module& model,
                           const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
