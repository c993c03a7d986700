#pragma once
/// \file
/// The ranks that save or load a checkpoint together.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::state {

/// The ranks of a process group, or this process alone, during one call of the user. The collectives of this class
/// carry the name of the call and the path for error messages.
class Ranks {
 public:
  /// `process_group` is null for this process alone. `call` is the name of the function that the user called, e.g.
  /// "save_checkpoint". `path` is the file or folder on this rank, or empty.
  Ranks(std::shared_ptr<ProcessGroup> process_group, std::string call, std::string path = {})
      : process_group_(std::move(process_group)), call_(std::move(call)), path_(std::move(path)) {}
  /// Returns an object with the same ranks and path for another call.
  Ranks during(std::string call) const { return {process_group_, std::move(call), path_}; }

  int rank() const { return process_group_ ? process_group_->rank() : 0; }
  int world_size() const { return process_group_ ? process_group_->world_size() : 1; }
  const std::string& call() const { return call_; }
  const std::string& path() const { return path_; }
  /// Returns the prefix of error messages.
  std::string where() const;

  /// Compares the operations that the ranks have issued on their devices. Throws Mismatch on all ranks if they differ.
  /// Does nothing on CPUs. Collective.
  void compare_issued() const;
  /// Runs `action` on this rank and returns the results of all ranks, by rank. If `action` threw on any rank, every
  /// rank throws an Error that names these ranks and contains their messages. Collective.
  std::vector<std::string> together(const std::function<std::string()>& action) const;
  /// Does the same as `together` for an action without a result.
  void all_do(const std::function<void()>& action) const;
  /// Sends `own` of each rank to the rank `root`, where `take` is called once for each rank in rank order. `take` must
  /// not throw. Collective.
  void collect(const std::string& own, int root,
               const std::function<void(int rank, const std::string& text)>& take) const;
  /// Broadcasts the CPU tensor `bytes` from the rank `root`. `tensor` is a tensor's name for error messages.
  /// Collective.
  void broadcast(const at::Tensor& bytes, int root, const std::string& tensor) const;

 private:
  std::shared_ptr<ProcessGroup> process_group_;
  std::string call_, path_;
};

}  // namespace fsdp::state
