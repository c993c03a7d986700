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

/// Replaces Communicator::all_gather for a group. It starts to fill each plane's output, which holds the group's whole
/// parameters of one dtype and row length, and returns without waiting. After the Work's wait(), outputs must be
/// complete and equal on every rank, including the rank's own slice. It is called without autograd in the thread that
/// needs the parameters, while the rank's lock is held, so it must not use the model. Pass `tag` to one collective of
/// `ranks`, so that ranks are compared.
using AllGather =
    std::function<std::shared_ptr<Work>(Communicator& ranks, std::vector<GatherPlane> planes, Tag tag)>;

/// Replaces Communicator::reduce_scatter for a group. It starts to fill each plane's output with this rank's slice of
/// the sum of all ranks' gradients times `scale`, and returns without waiting. If the group has replicas, the Work
/// should override `then`; otherwise the thread that starts the reduction waits. The rules of AllGather apply.
using ReduceScatter =
    std::function<std::shared_ptr<Work>(Communicator& ranks, std::vector<ReducePlane> planes, double scale, Tag tag)>;

/// Returns a Work that runs `work` and then calls `act` once: in the first thread that waits, or, if Work::then was
/// called, in the thread that finds `work` done. `act` fills `result` and may fill other tensors on its device, but
/// must not wait. On a device, streams that wait later also wait for what `act` launched. As thread-safe as `work`.
///
///     const auto& [output, input] = planes[0];
///     auto low = torch::empty_like(output, torch::kBFloat16);
///     auto own = low.narrow(0, ranks.rank() * input.numel(), input.numel()).copy_(input);
///     return fsdp::followed_by(ranks.all_gather(low, own, tag), output, [=, output = output] { output.copy_(low); });
std::shared_ptr<Work> followed_by(std::shared_ptr<Work> work, const at::Tensor& result, std::function<void()> act);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
