#pragma once
/// \file
/// Custom collectives for a group's gathers and reductions, for example with compressed messages.

#include <fsdp/communicator.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Function that replaces Communicator::all_gather for a group. It starts to fill each plane's output, which holds the
/// group's whole parameters of one dtype and row length, and returns without waiting. After the Work's wait(), outputs
/// must be complete and equal on every rank, including the rank's own slice. The library calls the function without
/// autograd in the thread that needs the parameters, while that thread holds the rank's lock, so the function must not
/// use the model. It should pass `tag` to one collective of `ranks`, which then compares the ranks' operations.
using AllGather =
    std::function<std::shared_ptr<Work>(Communicator& ranks, std::vector<GatherPlane> planes, Tag tag)>;

/// Function that replaces Communicator::reduce_scatter for a group. It starts to fill each plane's output with this
/// rank's slice of the sum of all ranks' gradients times `scale`, and returns without waiting. If the group has
/// replicas, the Work should override `then`; otherwise the thread that starts the reduction waits. The rules of
/// AllGather apply.
using ReduceScatter =
    std::function<std::shared_ptr<Work>(Communicator& ranks, std::vector<ReducePlane> planes, double scale, Tag tag)>;

/// Returns a Work that waits for `work` and then calls `act` once: in the first thread that waits, or, if Work::then
/// was called, in the thread that finds that `work` is done. `act` fills `result` and may fill other tensors on the
/// same device, but must not wait. On a device, streams that wait later also wait for the kernels that `act` launched.
/// The returned Work is as thread-safe as `work`.
///
///     const auto& [output, input] = planes[0];
///     auto low = torch::empty_like(output, torch::kBFloat16);
///     auto own = low.narrow(0, ranks.rank() * input.numel(), input.numel()).copy_(input);
///     return fsdp::followed_by(ranks.all_gather(low, own, tag), output, [=, output = output] { output.copy_(low); });
std::shared_ptr<Work> followed_by(std::shared_ptr<Work> work, const at::Tensor& result, std::function<void()> act);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
