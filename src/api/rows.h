#pragma once
/// \file
/// The memory of rows, whole tensors of what lies as rows do, and collectives of calls that are more than that.

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

namespace runtime {
class ParamGroup;
class ShardedParams;
}  // namespace runtime

/// Makes the memory of the rows of groups over one placement, but of those on the meta device; where ranks share memory
/// in one piece, in files of each rank's own for groups that are kept there, and room for their reductions. Collective.
/// Throws Error on every rank if some rank's disk has too little room. `call`: of the user's, for messages.
void allocate_rows(std::span<runtime::ShardedParams* const> groups, const std::string& call);

/// Gathers tensors of the sizes of a slot's rows, such as its gradient, into a new one of the parameter's sizes and
/// strides. `call` of the user's that needs it, and the file that it is about, if it is about one, are for messages.
/// Collective over the ranks that have rows each. Throws UsageError for other sizes, and what Work::wait throws.
at::Tensor gather_rows(runtime::ParamGroup& group, size_t slot, const at::Tensor& rows, const std::string& call,
                       const std::string& path = {});
/// full_tensor for such a call.
at::Tensor gather_whole(const at::Tensor& parameter, const std::string& call, const std::string& path = {});

/// What <fsdp/collectives.h> has; the tag says of which call.
at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group,
                      const Tag& tag);
double mean(double value, const std::shared_ptr<ProcessGroup>& group, const Tag& tag);

/// What `answer` gave on each rank. Where it threw, this rank throws the same, and every other one an Error that names
/// the first such rank. Collective; waits by `wait`.
std::vector<uint8_t> answers_of_ranks(
    const ProcessGroup& ranks, const std::string& operation, const std::string& subject,
    const std::function<uint8_t()>& answer, const std::function<void(Work&)>& wait = [](Work& work) { work.wait(); });

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
