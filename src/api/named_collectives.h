#pragma once
/// \file
/// What <fsdp/collectives.h> has, for calls of the library that are more than a collective: the tag says which.

#include <fsdp/collectives.h>

namespace fsdp {

at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group,
                      const Tag& tag);
double mean(double value, const std::shared_ptr<ProcessGroup>& group, const Tag& tag);

}  // namespace fsdp
