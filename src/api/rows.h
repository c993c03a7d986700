#pragma once
/// \file
/// Allocation of the memory of rows, all-gathers of rows into whole tensors, and collectives that are parts of the
/// user's calls.

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/param_group.h"

namespace fsdp {

/// Allocates the memory of the rows of groups over one placement, except for those on the meta device. Where ranks
/// share memory, each group gets one shared buffer; groups that are kept on disk get files of this rank. `call` is the
/// user's call, for messages. Collective. Throws Error on every rank if the disk of any rank has too little room.
void allocate_rows(std::span<runtime::ShardedParams* const> groups, const std::string& call);

/// All-gathers `rows`, which has the sizes of the slot's rows (the rows or their gradient, for example). Returns a new
/// tensor of the parameter's sizes and strides. For messages, `call` is the user's call that needs the tensor, and
/// `path` is the file, if any, that this call reads or writes. Collective over the shard axis. Throws UsageError for
/// other sizes, and what Work::wait throws.
at::Tensor gather_rows(runtime::ParamGroup& group, size_t slot, const at::Tensor& rows, const std::string& call,
                       const std::string& path = {});
/// Does what full_tensor does, as a part of the user's call `call`.
at::Tensor gather_whole(const at::Tensor& parameter, const std::string& call, const std::string& path = {});

/// These are the functions of <fsdp/collectives.h> with a tag that names the user's call.
at::Tensor all_reduce(const at::Tensor& tensor, ReduceOp op, const std::shared_ptr<ProcessGroup>& group,
                      const Tag& tag);
double mean(double value, const std::shared_ptr<ProcessGroup>& group, const Tag& tag);

/// Returns the results of `answer` on all ranks. If `answer` throws on some rank, that rank throws the same exception,
/// and every other rank throws an Error that names the first such rank. `wait` is called to wait for the collective.
/// Collective.
std::vector<uint8_t> answers_of_ranks(
    const ProcessGroup& ranks, const std::string& operation, const std::string& subject,
    const std::function<uint8_t()>& answer, const std::function<void(Work&)>& wait = [](Work& work) { work.wait(); });

/// Returns new tensors with rank `root`'s values of `members`, whose sizes and dtypes must be the same on every rank.
/// The new tensor is on the device that a member's `form` names, by default on the device of the member's own tensor.
/// `wait` is called to wait for each collective. Collective.
std::vector<at::Tensor> values_of_rank(
    int root, const ProcessGroup& process_group, const std::vector<runtime::GroupMember>& members,
    const std::string& subject, const std::function<void(Work&)>& wait = [](Work& work) { work.wait(); });

}  // namespace fsdp
