#include <fsdp/functional.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "comm/core/check.h"
#include "comm/group/attachment.h"

namespace fsdp::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A linear map from the ranks' inputs to the ranks' outputs.
struct Map {
  enum class Kind { kIdentity, kSlice, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kShift } kind;
  int64_t dim = 0;     // dim of the map; for kShift, the number of ranks by which it moves tensors
  int64_t concat = 0;  // for kAllToAll, the dim along which the received parts are joined
};
using enum Map::Kind;

// The map of a call, and the map of its backward.
struct Collective : torch::CustomClassHolder {
  Collective(std::string called, std::shared_ptr<ProcessGroup> over, Map map, Map transposed_map)
      : name(std::move(called)), group(std::move(over)), forward(map), backward(transposed_map) {}

  c10::intrusive_ptr<Collective> transposed() const {
    return c10::make_intrusive<Collective>(name, group, backward, forward);
  }

  const std::string name;
  const std::shared_ptr<ProcessGroup> group;
  const Map forward, backward;
};

// Returns the tensor with one dim. If the tensor is a sharded parameter, `reshape` gathers it; reading its data pointer
// would not.
at::Tensor flat(const at::Tensor& tensor) { return tensor.reshape({-1}); }

// Returns a tensor of sizes [..., size, ...] as a contiguous one of sizes [ranks, ..., size / ranks, ...].
at::Tensor cut(const at::Tensor& tensor, int64_t dim, int64_t ranks) {
  return tensor.unflatten(dim, {ranks, tensor.size(dim) / ranks}).movedim(dim, 0).contiguous();
}

// Returns a tensor of sizes [ranks, ..., size, ...] as one of sizes [..., ranks * size, ...].
at::Tensor join(const at::Tensor& parts, int64_t dim) { return parts.movedim(0, dim).flatten(dim, dim + 1); }

at::Tensor shifted(const at::Tensor& input, int64_t by, Communicator& ranks, const Tag& tag) {
  const int64_t world = ranks.world_size(), distance = (by % world + world) % world;
  if (distance == 0) return input.clone();
  const auto own = flat(input), other = at::empty_like(own);
  const auto rank = [&](int64_t places) { return static_cast<int>((ranks.rank() + places) % world); };
  ranks.send_recv(own, rank(distance), other, rank(world - distance), tag)->wait();
  return other.view(input.sizes());
}

at::Tensor run(const Collective& collective, const at::Tensor& input) {
  const auto& [kind, dim, concat] = collective.forward;
  if (kind == kIdentity) return input.view_as(input);
  if (kind == kSlice) {
    const int64_t size = input.size(dim) / collective.group->world_size();
    return input.narrow(dim, collective.group->rank() * size, size).clone();
  }
  const auto queue = Attachment::queue_for(*collective.group, collective.group, "functional");
  const int64_t ranks = queue->world_size();
  const Tag tag{str_cat(collective.name, " of sizes ", input.sizes()), {}};
  if (kind == kShift) return shifted(input, dim, *queue, tag);
  if (kind == kAllReduce) {
    const auto sum = input.clone(at::MemoryFormat::Contiguous);
    queue->all_reduce(sum, ReduceOp::kSum, tag)->wait();
    return sum;
  }
  if (kind == kAllGather) {
    auto sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), ranks);
    const auto parts = at::empty(sizes, input.options());
    queue->all_gather(flat(parts), flat(input), tag)->wait();
    return join(parts, dim);
  }
  const auto parts = cut(input, dim, ranks);
  if (kind == kReduceScatter) {
    const auto own = at::empty_like(parts[0]);
    queue->reduce_scatter(flat(own), flat(parts), tag)->wait();
    return own;
  }
  const auto received = at::empty_like(parts);
  queue->all_to_all(flat(received), flat(parts), tag)->wait();
  return join(received, concat);
}

struct Differentiable : torch::autograd::Function<Differentiable> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const c10::intrusive_ptr<Collective>& collective) {
    context->saved_data["collective"] = c10::IValue::make_capsule(collective);
    return run(*collective, input);
  }

  // Applies this Function again, so that autograd records it if a second derivative is needed.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto capsule = context->saved_data["collective"].toCapsule();
    return {apply(grads[0], static_cast<const Collective&>(*capsule).transposed()), {}};
  }
};

// The arguments of a call, with functions that check them.
struct Call {
  Call(std::string_view operation, const at::Tensor& tensor, const std::shared_ptr<ProcessGroup>& over)
      : name(str_cat("functional::", operation)), input(tensor), group(over ? over : default_process_group()) {
    expect(input.defined(), "expected a tensor, found an undefined one.");
  }

  template <class... Message>
  void expect(bool ok, const Message&... message) const {
    if (!ok) require(false, group->where(name), message...);
  }

  // Returns `wanted` as a dim that is not negative. Throws UsageError if the input has no such dim.
  int64_t dim(int64_t wanted) const {
    expect(-input.dim() <= wanted && wanted < input.dim(), "expected a dim of a tensor of sizes ", input.sizes(),
           ", found ", wanted, '.');
    return wanted < 0 ? wanted + input.dim() : wanted;
  }
  // Returns dim(wanted). Also throws UsageError if the input cannot be split along this dim into equal parts for the
  // ranks.
  int64_t dim_to_cut(int64_t wanted) const {
    const int64_t found = dim(wanted);
    expect(input.size(found) % group->world_size() == 0, "expected sizes that can be cut into ", group->world_size(),
           " equal parts along dim ", found, ", found ", input.sizes(),
           ". Pad the tensor, and remove the padding from the result.");
    return found;
  }

  // Runs a map whose backward has the same dim.
  at::Tensor run_along(int64_t along, Map::Kind forward, Map::Kind backward) const {
    return run({forward, along}, {backward, along});
  }
  at::Tensor run(Map forward, Map backward) const {
    if (group->world_size() == 1) return input;
    return Differentiable::apply(input, c10::make_intrusive<Collective>(name, group, forward, backward));
  }

  const std::string name;
  const at::Tensor& input;
  const std::shared_ptr<ProcessGroup> group;
};

}  // namespace

at::Tensor all_reduce(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group) {
  return Call("all_reduce", input, group).run({kAllReduce}, {kAllReduce});
}

at::Tensor copy_to_ranks(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group) {
  return Call("copy_to_ranks", input, group).run({kIdentity}, {kAllReduce});
}

at::Tensor reduce_from_ranks(const at::Tensor& input, const std::shared_ptr<ProcessGroup>& group) {
  return Call("reduce_from_ranks", input, group).run({kAllReduce}, {kIdentity});
}

at::Tensor all_gather(const at::Tensor& input, int64_t dim, const std::shared_ptr<ProcessGroup>& group) {
  const Call call("all_gather", input, group);
  return call.run_along(call.dim(dim), kAllGather, kReduceScatter);
}

at::Tensor scatter_to_ranks(const at::Tensor& input, int64_t dim, const std::shared_ptr<ProcessGroup>& group) {
  const Call call("scatter_to_ranks", input, group);
  return call.run_along(call.dim_to_cut(dim), kSlice, kAllGather);
}

at::Tensor gather_from_ranks(const at::Tensor& input, int64_t dim, const std::shared_ptr<ProcessGroup>& group) {
  const Call call("gather_from_ranks", input, group);
  return call.run_along(call.dim(dim), kAllGather, kSlice);
}

at::Tensor reduce_scatter(const at::Tensor& input, int64_t dim, const std::shared_ptr<ProcessGroup>& group) {
  const Call call("reduce_scatter", input, group);
  call.expect(input.is_floating_point(), "expected a floating point tensor, found ", input.scalar_type(), '.');
  return call.run_along(call.dim_to_cut(dim), kReduceScatter, kAllGather);
}

at::Tensor all_to_all(const at::Tensor& input, int64_t split_dim, int64_t concat_dim,
                      const std::shared_ptr<ProcessGroup>& group) {
  const Call call("all_to_all", input, group);
  const int64_t split = call.dim_to_cut(split_dim), concat = call.dim(concat_dim);
  return call.run({kAllToAll, split, concat}, {kAllToAll, concat, split});
}

at::Tensor shift(const at::Tensor& input, int64_t by, const std::shared_ptr<ProcessGroup>& group) {
  return Call("shift", input, group).run({kShift, by}, {kShift, -by});
}

}  // namespace fsdp::functional
