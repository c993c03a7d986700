#pragma once
/// \file
/// The ranks that save or load together.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::state {

/// The ranks of a process group, or this process alone, during one call of the user. Its collectives carry the call's
/// name, and the path for error messages.
class Ranks {
 public:
  /// `process_group`: null for this process alone. `call`: the function's name, e.g. "save_checkpoint". `path`: the
  /// file or folder on this rank; may be empty.
  Ranks(std::shared_ptr<ProcessGroup> process_group, std::string call, std::string path = {})
      : process_group_(std::move(process_group)), call_(std::move(call)), path_(std::move(path)) {}
  /// The same ranks and path during another call.
  Ranks during(std::string call) const { return {process_group_, std::move(call), path_}; }

  int rank() const { return process_group_ ? process_group_->rank() : 0; }
  int world_size() const { return process_group_ ? process_group_->world_size() : 1; }
  const std::string& call() const { return call_; }
  const std::string& path() const { return path_; }
  /// Prefix of error messages.
  std::string where() const;

  /// Compares the operations that ranks have issued on devices, and returns when they agree. Collective.
  void compare_issued() const;
  /// Runs `action` and returns the results of all ranks, by rank. Collective. If it threw on any rank, every rank
  /// throws Error with the ranks and their messages.
  std::vector<std::string> together(const std::function<std::string()>& action) const;
  /// `together` for an action without a result.
  void all_do(const std::function<void()>& action) const;
  /// On rank `root`, calls `take` with each rank's `own`, see collect_texts. Collective.
  void collect(const std::string& own, int root,
               const std::function<void(int rank, const std::string& text)>& take) const;
  /// Broadcasts `bytes`, a CPU tensor, from rank `root`. `tensor` is the name for error messages. Collective.
  void broadcast(const at::Tensor& bytes, int root, const std::string& tensor) const;

 private:
  std::shared_ptr<ProcessGroup> process_group_;
  std::string call_, path_;
};

}  // namespace fsdp::state
