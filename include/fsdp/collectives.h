#pragma once
/// \file
/// Collectives for metrics and decisions that must be the same on every rank.

#include <fsdp/process_group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// \name Collectives on tensors and numbers
/// All functions are collective over `group` (if null, the default process group). They wait for the result, which is
/// the same on every rank, and return a new tensor without autograd history; functions whose names end in `_` write the
/// result to their argument. Sizes and dtype must be equal on all ranks. Tensors may have any dtype, on the CPU or a
/// device that the group's backend supports. The functions use the group's communicator, so only one thread at a time
/// may call them.
///
/// The functions throw UsageError for an undefined tensor; Mismatch, which names the ranks, if the ranks' operations,
/// sizes or dtypes differ; and what Work::wait throws. All functions except all_gather also throw UsageError for rows
/// of a sharded parameter or of its gradient, because each rank has different rows, unless LocalRows is open or `group`
/// is an axis of replicas.
/// \{

/// Returns the sum, maximum or minimum over all ranks, element by element.
///
///     auto counts = fsdp::all_reduce(torch::tensor({correct, samples}));
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                                    const std::shared_ptr<ProcessGroup>& group = nullptr);
/// Writes the result to `tensor`, like dist.all_reduce in Python. Do not call it for gradients of sharded parameters,
/// which backward has already averaged.
///
///     fsdp::all_reduce_(temperature.mutable_grad());  // of a tensor that no module has registered
void all_reduce_(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                 const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns the mean of one number per rank. It sums in fp64 in rank order, so every rank gets the same bits.
///
///     const double loss = fsdp::mean(sum / batches);
///     if (loss > best) break;  // on every rank or on none
[[nodiscard]] double mean(double value, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns `root`'s tensor. The other ranks' tensors are used only for their sizes and dtype.
///
///     auto order = fsdp::broadcast(torch::randperm(samples));
[[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, int root = 0,
                                   const std::shared_ptr<ProcessGroup>& group = nullptr);
/// Writes `root`'s tensor to `tensor`, like dist.broadcast in Python.
void broadcast_(const at::Tensor& tensor, int root = 0, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Returns the tensors of all ranks, stacked along a new dim 0: [world size, sizes of one tensor...].
///
///     auto seconds = fsdp::all_gather(torch::tensor(elapsed));  // [world size]
[[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
