#pragma once
/// \file
/// Numbers and decisions that are the same on every rank: metrics, early stopping, what rank 0 read.

#include <fsdp/process_group.h>

#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// \name What every rank gets alike
/// Collective over `group` (null: the default one): each waits for its result and gives it to every rank without
/// autograd, as a new tensor, or in the tensor itself where the name ends in `_`. Tensors have the same sizes and dtype
/// on every rank, any dtype, and lie on the CPU or a device that the group's backend moves. They go through the group's
/// communicator, which one thread at a time may use. Throw UsageError for an undefined tensor, all but all_gather also
/// for rows of a sharded parameter or of its gradient, which are other ones on each rank (unless LocalRows is open, or
/// `group` are replicas), Mismatch naming the ranks whose operation, sizes or dtype differ, and what Work::wait throws.
/// \{

/// The sum, maximum or minimum over all ranks, element by element.
///
///     auto counts = fsdp::all_reduce(torch::tensor({correct, samples}));
[[nodiscard]] at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                                    const std::shared_ptr<ProcessGroup>& group = nullptr);
/// The same, written to `tensor`: what dist.all_reduce does in Python. The gradient of a sharded parameter does not
/// need it, because backward has averaged it.
///
///     fsdp::all_reduce_(temperature.mutable_grad());  // of a tensor that no module has registered
void all_reduce_(const at::Tensor& tensor, ReduceOp op = ReduceOp::kSum,
                 const std::shared_ptr<ProcessGroup>& group = nullptr);

/// The mean of one number of every rank, summed in fp64 in rank order: the same bits on every rank.
///
///     const double loss = fsdp::mean(sum / batches);
///     if (loss > best) break;  // on every rank or on none
[[nodiscard]] double mean(double value, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// What `root` has. The other ranks' tensors say sizes and dtype only.
///
///     auto order = fsdp::broadcast(torch::randperm(samples));
[[nodiscard]] at::Tensor broadcast(const at::Tensor& tensor, int root = 0,
                                   const std::shared_ptr<ProcessGroup>& group = nullptr);
/// The same, written to `tensor`: what dist.broadcast does in Python.
void broadcast_(const at::Tensor& tensor, int root = 0, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// Every rank's tensor, of sizes [world size, sizes of one...].
///
///     auto seconds = fsdp::all_gather(torch::tensor(elapsed));  // [world size]
[[nodiscard]] at::Tensor all_gather(const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& group = nullptr);

/// \}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
