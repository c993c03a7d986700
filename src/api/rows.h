#pragma once
/// \file
/// The memory of rows, whole tensors of what lies as rows do, and collectives of calls that are more than that.

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <cstddef>
#include <span>
#include <string>

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

}  // namespace fsdp
