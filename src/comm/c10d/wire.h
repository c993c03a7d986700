#pragma once
/// \file
/// Messages between two ranks over a c10d backend, with waits that end.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/core/traffic_count.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fsdp {

/// A wait was ended by `Wire::interrupt()`.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

/// Sends and receives whole tensors. Messages between two ranks under one channel of one order arrive in the order
/// sent.
///
/// A receive and its send must have the same number of bytes: Gloo ends the connection otherwise. Thread safety: one
/// thread at a time, but for `interrupt()` and `waiting_for()`, which any thread may call; wires of one backend have a
/// thread each.
class Wire {
 public:
  enum class Channel : int { kHeader = 0, kData = 1 };

  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    int peer = -1;
  };

  /// A backend, one call at a time.
  struct Transport {
    c10::intrusive_ptr<c10d::Backend> backend;
    std::mutex mutex;
  };

  /// `order`: of several wires over one transport, alike on both ends. `traffic`: where data counts; null: nowhere.
  Wire(std::shared_ptr<Transport> transport, std::chrono::milliseconds timeout, int order = 0,
       std::shared_ptr<const CountByPeer> traffic = nullptr)
      : transport_(std::move(transport)), timeout_(timeout), order_(order), traffic_(std::move(traffic)) {}

  /// The timeout begins: it holds for all that is waited for from now on.
  void begin_operation() { deadline_ = std::chrono::steady_clock::now() + timeout_; }
  /// Until the timeout ends, a millisecond at least.
  std::chrono::milliseconds time_left() const;

  /// The tensor must stay as it is until the transfer was waited for. Empty tensors send nothing.
  Transfer send(const at::Tensor& tensor, int peer, Channel channel);
  Transfer recv(const at::Tensor& tensor, int peer, Channel channel);

  /// Blocks for at most the time left. Throws Interrupted, or what the backend throws.
  void wait(const Transfer& transfer);

  /// Runs `wait`, which waits for something else and which `end`, called from another thread, makes throw. Throws
  /// Interrupted, or what `wait` throws.
  void wait_elsewhere(const std::function<void()>& wait, std::function<void()> end);

  /// Ends the wait in progress and all later ones; one elsewhere has ended when this returns.
  void interrupt();

  /// The rank that `wait` waits for or failed to hear from; -1 if none.
  int waiting_for() const { return waiting_for_; }
  /// It is this rank that a wait elsewhere did not hear from.
  void blame(int peer) { waiting_for_ = peer; }

 private:
  int tag(Channel channel) const { return 2 * order_ + static_cast<int>(channel); }

  const std::shared_ptr<Transport> transport_;
  const std::chrono::milliseconds timeout_;
  const int order_;
  const std::shared_ptr<const CountByPeer> traffic_;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + timeout_;
  std::atomic<int> waiting_for_{-1};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool interrupted_ = false;
  c10::intrusive_ptr<c10d::Work> pending_;
  std::function<void()> end_;  // of the wait elsewhere
};

}  // namespace fsdp
