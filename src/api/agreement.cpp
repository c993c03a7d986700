#include "api/plan.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fsdp/error.h>
#include <xxhash.h>

#include <algorithm>
#include <iomanip>
#include <span>
#include <unordered_set>

#include "api/placement_choice.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "runtime/deferred_value.h"

namespace fsdp {
namespace {

using runtime::NamedParameter;

// Describes in words what must be the same on every rank. The ranks compare the hash of this text.
std::string describe(const std::vector<PlannedGroup>& plan, const std::vector<NamedParameter>& buffers,
                     const FullyShardOptions& options, const runtime::Placement& placement) {
  TextWriter text;
  const auto add = [&](const NamedParameter& named) {
    const auto& tensor = named.tensor;
    const bool is_known = options.sync_module_states || !runtime::form_of_values(tensor).device.is_meta();
    text << named.name << ' ' << tensor.sizes() << ' ' << tensor.strides() << ' ' << tensor.scalar_type() << ' '
         << tensor.requires_grad() << (is_known ? "\n" : " on the meta device\n");
  };
  for (const auto& group : plan) {
    text << "group " << group.name << '\n';
    for (const auto& parameter : group.parameters) {
      add(parameter);
      if (const auto& precision = parameter.precision)
        text << "whole " << precision->whole << ", reduced " << precision->reduced << '\n';
    }
  }
  for (const auto& buffer : buffers) add(buffer);
  if (const auto& reshard = options.reshard_after_forward)
    text << "reshard " << reshard->after_forward() << " within " << reshard->ranks().value_or(0) << '\n';
  if (options.max_prefetched_bytes) text << "ahead " << *options.max_prefetched_bytes << " bytes\n";
  if (const auto broadcasts = options.broadcast_buffers) text << "broadcast buffers " << *broadcasts << '\n';
  if (options.disk_policy) text << "rows in files\n";
  if (options.offload_policy) text << "rows in host memory\n";
  if (options.sync_module_states) text << "rank 0's values\n";
  if (placement.is_replicated_only()) text << "buckets of " << options.bucket_cap_bytes << " bytes\n";
  return text.str();
}

// Returns a hash of the tensor's values. check_parameter requires dense rows that follow one another, so the tensor's
// memory is the nbytes() bytes from its first element on.
int64_t checksum(const at::Tensor& tensor) {
  if (runtime::deferred_value_of(tensor)) return fingerprint_of(tensor);
  if (tensor.is_meta()) return 0;
  const auto here = tensor.is_cpu() ? tensor : tensor.detach().cpu();
  return static_cast<int64_t>(XXH3_64bits(here.const_data_ptr(), here.nbytes()));
}

// Broadcasts the types of the devices on which rank 0 has its values. Returns this rank's devices of these types.
// Collective.
std::vector<c10::Device> devices_of_rank_0(const std::vector<NamedParameter>& tensors,
                                           const ProcessGroup& process_group, const std::string& subject,
                                           const std::string& where) {
  const auto kinds = at::empty({std::ssize(tensors)}, at::kChar);
  auto* kind = kinds.mutable_data_ptr<int8_t>();
  for (const auto& [name, tensor] : tensors)
    *kind++ = static_cast<int8_t>(runtime::form_of_values(tensor).device.type());
  process_group.communicator().broadcast(kinds, 0, {subject})->wait();
  std::vector<c10::Device> devices;
  for (const auto& [name, tensor] : tensors) {
    const auto type = static_cast<c10::DeviceType>(kinds.const_data_ptr<int8_t>()[devices.size()]);
    require(
        type != at::kMeta, where,
        "FullyShardOptions::sync_module_states copies rank 0's values to all ranks, but on rank 0 '", name,
        "' is on the meta device and has no values. Build the model of rank 0 as usual, or in fsdp::deferred_init, or "
        "set FullyShardOptions::param_init_fn on rank 0; the models of the other ranks may stay on the meta device");
    const auto own = runtime::form_of_values(tensor).device;
    devices.push_back(own.type() == type ? own : with_index(c10::Device(type)));
  }
  return devices;
}

// Compares one hash of all values. If it differs, the ranks exchange the checksums of all parameters and throw Mismatch
// naming the first that differs. Collective.
void require_same_values(const std::vector<NamedParameter>& parameters, const ProcessGroup& process_group,
                         const std::string& subject) {
  auto& ranks = process_group.communicator();
  const auto sums = at::zeros({std::ssize(parameters)}, at::kLong);
  auto* sum = sums.mutable_data_ptr<int64_t>();
  if (ranks.world_size() > 1)
    for (const auto& parameter : parameters) *sum++ = checksum(parameter.tensor);
  const auto hash = static_cast<int64_t>(XXH3_64bits(sums.const_data_ptr(), sums.nbytes()));
  const auto least = at::full({2}, hash, at::kLong);
  least[1] = ~hash;  // the minimum of ~hash belongs to the largest hash
  ranks.all_reduce(least, ReduceOp::kMin, {subject})->wait();
  if (least[0].item<int64_t>() == ~least[1].item<int64_t>()) return;

  auto all = at::empty({ranks.world_size() * sums.numel()}, at::kLong);
  ranks.all_gather(all, sums, {"fully_shard, checksums of values"})->wait();
  all = all.view({ranks.world_size(), -1});
  const auto differ = all.ne(all[0]);
  const auto first = differ.any(0).nonzero()[0].item<int64_t>();
  const auto rank = differ.select(1, first).nonzero()[0].item<int64_t>();
  const auto& names = process_group.global_ranks();
  throw Mismatch(str_cat(process_group.where("fully_shard"), "parameter '", parameters[static_cast<size_t>(first)].name,
                         "' has different values on rank ", names[static_cast<size_t>(rank)], " than on rank ",
                         names[0], " (", differ.any(0).sum().item<int64_t>(), " of ", parameters.size(),
                         " parameters differ; checksums were compared). Give every rank the same values before "
                         "fully_shard: call torch::manual_seed with the same seed, or load the same file; or set "
                         "FullyShardOptions::sync_module_states, which copies rank ",
                         names[0], "'s values"));
}

// Adds the parts of an argument that must be the same on every rank. Devices and generators may differ between ranks.
void add_argument(const c10::IValue& argument, const auto& add) {
  if (argument.isTensor()) {
    if (const auto& tensor = argument.toTensor(); tensor.defined() && !tensor.is_meta()) {
      const auto values = tensor.detach().cpu().contiguous();
      add(values.const_data_ptr(), values.nbytes());
    }
  } else if (argument.isList()) {
    for (const auto& element : argument.toListRef()) add_argument(element, add);
  } else if (argument.isDouble() || argument.isInt() || argument.isBool() || argument.isString()) {
    const auto text = str_cat(argument);  // str_cat prints all digits of a number
    add(text.data(), text.size());
  }
}

}  // namespace

int64_t fingerprint_of(const at::Tensor& tensor) {
  std::unordered_set<const runtime::DeferredCall*> seen;
  uint64_t sum = 0;
  const auto add = [&](const void* data, size_t bytes) { sum = XXH3_64bits_withSeed(data, bytes, sum); };
  for (std::vector<runtime::DeferredValuePtr> open{runtime::deferred_value_of(tensor)}; !open.empty();) {
    const auto next = open.back();
    open.pop_back();
    if (next->there.defined() && next->there.is_cpu()) add(next->there.const_data_ptr(), next->there.nbytes());
    if (!next->call || !seen.insert(next->call.get()).second) continue;
    const auto& call = *next->call;
    const auto& name = call.op.operator_name().name;
    add(name.data(), name.size());
    add(&next->place, sizeof next->place);
    for (size_t i = 0; i < call.arguments.size(); ++i)
      if (std::ranges::none_of(call.operands, [i](const auto& operand) { return operand.argument == i; }))
        add_argument(call.arguments[i], add);
    if (const auto& state = call.generator_state; state.defined()) add(state.const_data_ptr(), state.nbytes());
    for (const auto& operand : call.operands) open.push_back(operand.value);
  }
  return static_cast<int64_t>(sum);
}

std::vector<c10::Device> agree(const runtime::Placement& placement, const std::vector<PlannedGroup>& plan,
                               const std::vector<NamedParameter>& buffers, const FullyShardOptions& options) {
  const auto& process_group = placement.process_group();
  std::vector<NamedParameter> tensors;
  int64_t numel = 0;
  for (const auto& group : plan)
    for (const auto& parameter : group.parameters) {
      tensors.push_back(parameter);
      numel += parameter.tensor.numel();
    }
  const auto text = describe(plan, buffers, options, placement);
  // The subject is a part of the collective's fingerprint, which is compared before data moves.
  const std::string subject =
      str_cat("fully_shard ", plan.back().name, ": ", tensors.size(), " parameters, ", numel, " elements, ",
              describe(options.strategy, placement.replicas(), placement.shard().world_size()),
              "; names, sizes, dtypes and options ", std::hex, std::setfill('0'), std::setw(16),
              XXH3_64bits(text.data(), text.size()));
  if (!options.sync_module_states) {
    require_same_values(tensors, process_group, subject);
    return {};
  }
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  return devices_of_rank_0(tensors, process_group, subject, placement.where("fully_shard"));
}

std::vector<uint8_t> answers_of_ranks(const ProcessGroup& ranks, const std::string& operation,
                                      const std::string& subject, const std::function<uint8_t()>& answer,
                                      const std::function<void(Work&)>& wait) {
  constexpr uint8_t kThrew = UINT8_MAX;
  FirstError error;
  uint8_t own = kThrew;
  error.run([&] { own = answer(); });
  const auto all = at::empty({ranks.world_size()}, at::kByte);
  wait(*ranks.communicator().all_gather(all, at::full({1}, own, at::kByte), {subject, {}}));
  error.rethrow();
  const std::span answers(all.const_data_ptr<uint8_t>(), static_cast<size_t>(all.numel()));
  const auto threw = std::ranges::find(answers, kThrew);
  if (threw != answers.end())
    throw Error(str_cat(ranks.where(operation), "rank ",
                        ranks.global_ranks()[static_cast<size_t>(threw - answers.begin())],
                        " failed, and its own error says why"));
  return {answers.begin(), answers.end()};
}

std::vector<at::Tensor> values_of_rank(int root, const ProcessGroup& process_group,
                                       const std::vector<runtime::GroupMember>& members, const std::string& subject,
                                       const std::function<void(Work&)>& wait) {
  at::NoGradGuard no_grad;
  constexpr size_t kAlignment = 16;  // size of the largest element
  const auto device_of = [&](size_t i) { return members[i].form.value_or(memory::form_of(members[i].tensor)).device; };
  std::vector<at::Tensor> values;
  for (size_t begin = 0, end = 0; begin < members.size(); begin = end) {  // one broadcast for neighbours on one device
    const auto device = device_of(begin);
    std::vector<size_t> offsets{0};
    for (; end < members.size() && device_of(end) == device; ++end)
      offsets.push_back(offsets.back() + (members[end].tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment);
    auto bytes = at::empty({static_cast<int64_t>(offsets.back())}, at::device(device).dtype(at::kByte));
    for (size_t i = begin; i < end; ++i) {
      const auto& tensor = members[i].tensor;
      values.push_back(bytes.narrow(0, static_cast<int64_t>(offsets[i - begin]), static_cast<int64_t>(tensor.nbytes()))
                           .view(tensor.scalar_type())
                           .view(tensor.sizes()));
      if (process_group.rank() != root) continue;
      values.back().copy_(runtime::deferred_value_of(tensor) ? runtime::compute(tensor) : tensor);
    }
    if (offsets.back() > 0) wait(*process_group.communicator().broadcast(bytes, root, {subject, {}}));
  }
  return values;
}

}  // namespace fsdp
