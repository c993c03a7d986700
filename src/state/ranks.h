#pragma once
/// \file
/// The ranks that save or load together.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::state {

/// Those of a process group, or this process alone.
class Ranks {
 public:
  /// `process_group`: null for this process alone.
  explicit Ranks(std::shared_ptr<ProcessGroup> process_group) : process_group_(std::move(process_group)) {}
  int rank() const { return process_group_ ? process_group_->rank() : 0; }
  int world_size() const { return process_group_ ? process_group_->world_size() : 1; }
  /// How errors begin.
  std::string where(const std::string& operation) const;

  /// Runs `action` and gives every rank what it returned on each, by rank. Collective. If it threw on some rank, every
  /// rank throws an Error that says which ones and what they said.
  std::vector<std::string> together(const std::string& operation, const std::function<std::string()>& action) const;
  /// Gives every rank what `bytes` has on rank `root`; it is on the CPU. Collective.
  void broadcast(const at::Tensor& bytes, int root, const std::string& operation) const;

 private:
  std::shared_ptr<ProcessGroup> process_group_;
};

}  // namespace fsdp::state
