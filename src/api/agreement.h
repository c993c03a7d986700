#pragma once
/// \file
/// What ranks tell each other in a call, and before anything is sharded.

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "api/plan.h"
#include "runtime/placement.h"

namespace fsdp {

/// Compares the ranks' groups, buffers if they are to be synchronised, options and axes; then, unless rank 0's values
/// are taken, the values of parameters by one hash of all. One collective, and another one where values differ, which
/// finds out the names. Throws Mismatch: of other values on every rank, naming the first parameter, and the process
/// group can still be used.
///
/// Where rank 0's values are taken, returns the devices to have them on: of the plan's parameters, then of the buffers.
/// They are of the kinds that rank 0 has them on: the tensor's own, or this thread's current one. Throws UsageError on
/// every rank if rank 0 has no values of some.
std::vector<c10::Device> agree(const runtime::Placement& placement, const std::vector<PlannedGroup>& plan,
                               const std::vector<runtime::NamedParameter>& buffers, const FullyShardOptions& options);

/// What `answer` gave on each rank. Where it threw, this rank throws the same, and every other one an Error that names
/// the first such rank. Collective; waits by `wait`.
std::vector<uint8_t> answers_of_ranks(
    const ProcessGroup& ranks, const std::string& operation, const std::string& subject,
    const std::function<uint8_t()>& answer, const std::function<void(Work&)>& wait = [](Work& work) { work.wait(); });

/// Of the calls that a value is put off to, and of the random numbers that they will draw.
int64_t fingerprint_of(const at::Tensor& tensor);

/// A tensor whose values another rank has: here its sizes and dtype count, and where they are to lie.
struct WantedValues {
  at::Tensor tensor;
  c10::Device device;
};

/// A rank's values of tensors that have the same sizes and dtypes on every rank, as new ones. Collective.
std::vector<at::Tensor> values_of_rank(
    int root, const ProcessGroup& process_group, const std::vector<WantedValues>& tensors, const std::string& subject,
    const std::function<void(Work&)>& wait = [](Work& work) { work.wait(); });

}  // namespace fsdp
