#pragma once
/// \file
/// What a group's rows are gathered with and its gradients reduced with: the place for other bytes on the wire.

#include <fsdp/communicator.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Stands for Communicator::all_gather of a group: starts to fill each plane's output, the group's whole parameters of
/// one dtype and row size, with every rank's slice, and returns without waiting. Outputs have to be complete on every
/// rank after the Work's wait(), with the same values everywhere, this rank's own slice included. Called in the thread
/// that needs the parameters, without autograd, under the lock of the rank: it must not use the model. Give `tag` to
/// one collective of `ranks`, which compares what the ranks do.
using AllGather =
    std::function<std::shared_ptr<Work>(Communicator& ranks, std::vector<GatherPlane> planes, Tag tag)>;

/// Stands for Communicator::reduce_scatter of a group: starts to fill each plane's output with this rank's slice of the
/// sum of all ranks' gradients times `scale`, and returns without waiting. Where replicas are summed after it, a Work
/// of one's own overrides `then`, or the thread that starts the reduction waits. Otherwise as AllGather.
using ReduceScatter =
    std::function<std::shared_ptr<Work>(Communicator& ranks, std::vector<ReducePlane> planes, double scale, Tag tag)>;

/// `work`, after which `act` is called once: in the first thread that waits, or, where something follows it
/// (Work::then), in the thread that finds `work` done. `act` does not wait; it fills `result`, and may fill more on its
/// device. On a device what the streams of later waiters are given comes after it. Thread safety: that of `work`.
///
///     const auto& [output, input] = planes[0];
///     auto low = torch::empty_like(output, torch::kBFloat16);
///     auto own = low.narrow(0, ranks.rank() * input.numel(), input.numel()).copy_(input);
///     return fsdp::followed_by(ranks.all_gather(low, own, tag), output, [=, output = output] { output.copy_(low); });
std::shared_ptr<Work> followed_by(std::shared_ptr<Work> work, const at::Tensor& result, std::function<void()> act);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
