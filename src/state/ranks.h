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

/// Those of a process group, or this process alone, during one call of the user's. Its collectives carry the call's
/// name, and what it is about in messages.
class Ranks {
 public:
  /// `process_group`: null for this process alone. `call`: e.g. "save_checkpoint"; `path`: the file or folder that it
  /// is about on this rank, empty if there is none.
  Ranks(std::shared_ptr<ProcessGroup> process_group, std::string call, std::string path = {})
      : process_group_(std::move(process_group)), call_(std::move(call)), path_(std::move(path)) {}
  /// The same ranks during another call about the same path.
  Ranks during(std::string call) const { return {process_group_, std::move(call), path_}; }

  int rank() const { return process_group_ ? process_group_->rank() : 0; }
  int world_size() const { return process_group_ ? process_group_->world_size() : 1; }
  const std::string& call() const { return call_; }
  const std::string& path() const { return path_; }
  /// How errors begin.
  std::string where() const;

  /// Returns when the ranks agree about what they issued on devices before, which they compare behind it. Collective.
  void compare_issued() const;
  /// Runs `action` and gives every rank what it returned on each, by rank. Collective. If it threw on some rank, every
  /// rank throws an Error that says which ones and what they said.
  std::vector<std::string> together(const std::function<std::string()>& action) const;
  /// The same of an action that returns nothing.
  void all_do(const std::function<void()>& action) const;
  /// Gives each rank's `own` to `take` on rank `root` alone, see collect_texts. Collective.
  void collect(const std::string& own, int root,
               const std::function<void(int rank, const std::string& text)>& take) const;
  /// Gives every rank what `bytes` has on rank `root`; it is on the CPU, and of `tensor`. Collective.
  void broadcast(const at::Tensor& bytes, int root, const std::string& tensor) const;

 private:
  std::shared_ptr<ProcessGroup> process_group_;
  std::string call_, path_;
};

}  // namespace fsdp::state
