#pragma once
/// \file
/// Which thread began a backward. LibTorch runs a backward that is nested deeper than 60 in others on a thread of its
/// own, while the thread that began the outermost one waits.

#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace fsdp::runtime {

/// Names the thread that began the outermost of the backwards that the current one is nested in; null outside of a
/// backward. It is the address of that thread's queue of nodes, which all of them share. Nodes that run on a device's
/// thread have that thread's. No function of LibTorch's gives it, so it is reached from a neighbour in the graph task.
inline const void* beginner_of_backward() {
  using torch::autograd::GraphTask;
  const auto* neighbour = torch::autograd::get_current_graph_task_exec_info();
  if (neighbour == nullptr) return nullptr;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOffset = offsetof(GraphTask, exec_info_);
#pragma GCC diagnostic pop
  const auto* task = reinterpret_cast<const GraphTask*>(reinterpret_cast<const std::byte*>(neighbour) - kOffset);
  return task->cpu_ready_queue_.get();
}

}  // namespace fsdp::runtime
