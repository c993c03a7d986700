#include "api/plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "comm/core/check.h"
#include "runtime/deferred_value.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

// Returns true if the elements of each row are contiguous in memory and the rows follow one another.
bool has_dense_rows(const at::Tensor& tensor) {
  if (tensor.dim() == 0 || tensor.numel() == 0) return true;
  const bool follow_one_another = tensor.size(0) == 1 || tensor.stride(0) == tensor.numel() / tensor.size(0);
  return follow_one_another && tensor.detach().select(0, 0).is_non_overlapping_and_dense();
}

std::shared_ptr<runtime::ParamGroup> group_of_parameter(const at::Tensor& parameter) {
  auto part = runtime::registry().find(parameter);
  return part ? part->group : nullptr;
}

// Throws UsageError if an earlier call of fully_shard has taken the tensor's memory. Reading the memory throws an error
// that says so.
void require_memory(const at::Tensor& tensor, const std::string& what) {
  try {
    static_cast<void>(tensor.const_data_ptr());
  } catch (const c10::Error& error) {
    require(false, what, "has no memory: ", error.what_without_backtrace());
  }
}

// Returns why a tensor's values are not simply its elements in memory; null if they are.
const char* special_kind(const at::Tensor& tensor) {
  return tensor.is_nested()        ? "nested"
         : tensor.is_quantized()   ? "quantised"
         : tensor._is_zerotensor() ? "a zero tensor"
         : tensor.is_conj()        ? "conjugated"
         : tensor.is_neg()         ? "negated"
                                   : nullptr;
}

// Returns true if ranks can sum gradients in the dtype and LibTorch's operators can compute in it.
bool can_be_summed(at::ScalarType dtype) {
  constexpr at::ScalarType kSummed[]{at::kHalf, at::kBFloat16, at::kFloat, at::kDouble};
  return std::ranges::find(kSummed, dtype) != std::end(kSummed);
}

void check_parameter(const runtime::NamedParameter& parameter, const std::string& where) {
  const auto& [name, tensor] = parameter;
  auto what = where + "parameter '" + name + "' ";
  const char* kind = special_kind(tensor);
  require(kind == nullptr, what, "is ", kind, ", expected a plain tensor. Ignore the parameter (ignored_params)");
  require(tensor.layout() == at::kStrided, what, "has the layout ", tensor.layout(),
          ", expected a strided tensor. Make the parameter dense first");
  require(tensor.is_cpu() || tensor.is_cuda() || tensor.is_privateuseone() || tensor.is_meta(), what, "is on ",
          tensor.device(), ", expected the CPU, a CUDA device, a PrivateUse1 device or the meta device");
  require(!tensor.is_inference(), what, "was made in inference mode. Build the module outside of c10::InferenceMode");
  require(tensor.is_leaf(), what, "is not a leaf of autograd but a result of ",
          tensor.grad_fn() ? tensor.grad_fn()->name() : "an operator",
          ". Register a leaf instead: tensor.detach().requires_grad_()");
  require(!tensor.grad().defined(), what,
          "already has a gradient, because a backward ran before fully_shard. Shard before the first backward, or "
          "reset the gradients with zero_grad()");
  require(!torch::autograd::impl::get_autograd_meta(tensor) || !torch::autograd::impl::post_acc_grad_hooks(tensor),
          what,
          "has a hook set by torch::autograd::impl::set_post_acc_grad_hooks, but fsdp needs that hook for itself. Use "
          "register_hook, which gets the whole gradient");
  require(!torch::autograd::impl::try_get_grad_accumulator(tensor), what,
          "is part of a graph that autograd recorded, or a caller of torch::autograd::impl::grad_accumulator holds its "
          "node. Shard before forward, or release the loss, the outputs and that node first");
  if (!tensor.is_meta()) require_memory(tensor, what);
  require_put_off(parameter, where);
  require(tensor.is_floating_point() || !tensor.requires_grad(), what, "requires gradients and has the dtype ",
          tensor.scalar_type(),
          ", expected a floating point dtype. Register the real and imaginary parts of the parameter, or ignore the "
          "parameter (ignored_params)");
  require(can_be_summed(tensor.scalar_type()) || !tensor.requires_grad(), what, "requires gradients and has the dtype ",
          tensor.scalar_type(),
          ", expected Half, BFloat16, Float or Double, the dtypes in which ranks sum gradients and optimizers compute. "
          "Freeze the "
          "parameter (set_requires_grad(false)), or convert it to one of these dtypes");
  require(has_dense_rows(tensor), what, "has rows (dim 0) that are not dense: sizes ", tensor.sizes(), ", strides ",
          tensor.strides(), ". Use tensor.contiguous() when you register the parameter; channels_last is fine");
}

// The range of memory that a tensor spans, including gaps between its elements. The meta device has no addresses, so a
// storage there counts as one byte.
struct Extent {
  const char *begin = nullptr, *end = nullptr;
  const std::string* name = nullptr;
  bool is_sharded = false;
};

Extent extent_of(const runtime::NamedParameter& named, bool is_sharded) {
  const auto& tensor = named.tensor;
  const auto* begin =
      static_cast<const char*>(tensor.is_meta() ? tensor.storage().unsafeGetStorageImpl() : tensor.const_data_ptr());
  const auto bytes =
      tensor.is_meta() ? 1 : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
  return {begin, begin + (begin == nullptr ? 0 : bytes), &named.name, is_sharded};
}

// Throws UsageError if the policy contradicts itself, or cannot be applied to what is under `tree`.
void check_precision(const MixedPrecisionPolicy& policy, const ModuleNode& tree, const std::string& where) {
  for (const auto& [field, dtype] : {std::pair("param_dtype", policy.param_dtype),
                                     {"reduce_dtype", policy.reduce_dtype},
                                     {"output_dtype", policy.output_dtype}})
    require(!dtype || can_be_summed(*dtype), where, "MixedPrecisionPolicy::", field,
            ": expected Half, BFloat16, Float or Double, the dtypes in which ranks can sum and operators compute, "
            "found ",
            dtype.value_or(at::kFloat));
  if (!policy.keeps_precision) return;
  require(policy.param_dtype || policy.reduce_dtype, where,
          "MixedPrecisionPolicy::keeps_precision selects modules that keep their dtype, but the policy changes no "
          "dtype. Set param_dtype or reduce_dtype");
  visit_nodes(tree, [&](const ModuleNode& node) {
    require(node.module != nullptr || node.parameters.empty(), where,
            "MixedPrecisionPolicy::keeps_precision takes torch::nn modules, found ", node.type,
            ". Leave keeps_precision unset, or shard the modules that must keep their dtype in a separate call without "
            "a policy");
  });
}

// Throws UsageError if the options name a device or a folder that is not there, or ask for offloading that the devices
// of the parameters do not allow.
void check_devices(const FullyShardOptions& options, const ModuleNode& tree, c10::Device of_ranks,
                   const std::string& where) {
  if (options.disk_policy) {
    const auto& folder = options.disk_policy->folder;
    std::error_code unknown;
    require(std::filesystem::is_directory(folder, unknown), where, "DiskOffloadPolicy::folder: there is no folder '",
            folder, "'. Create the folder on every host, on a disk and not in memory (tmpfs)");
    for (const auto& [name, tensor] : subtree_parameters(tree))
      require(tensor.is_cpu() || tensor.is_meta(), where,
              "FullyShardOptions::disk_policy keeps rows in files that are mapped into host memory, but parameter '",
              name, "' is on ", tensor.device(), ". Leave disk_policy unset, or shard the model on the CPU");
  }
  if (options.device) require_device(*options.device, where + "FullyShardOptions::device: ");
  require(!options.disk_policy || !options.device || options.device->is_cpu(), where,
          "FullyShardOptions::disk_policy keeps rows in files that are mapped into host memory, but "
          "FullyShardOptions::device is ",
          options.device.value_or(c10::kCPU), ". Leave one of them unset");
  if (!options.offload_policy) return;
  for (const auto& [name, tensor] : subtree_parameters(tree)) {
    if (runtime::registry().find(tensor)) continue;
    const auto device = choose_device(options, runtime::form_of_values(tensor).device, of_ranks);
    require(!device.is_cpu(), where,
            "FullyShardOptions::offload_policy keeps in host memory the rows of parameters on an accelerator, but "
            "parameter '",
            name,
            "' is on the CPU, and so are the process group's tensors. For a model on the CPU, set "
            "FullyShardOptions::disk_policy instead. For a model on an accelerator, name the accelerator in "
            "FullyShardOptions::device");
  }
}

void check_module(const ModuleNode& tree, const runtime::Placement& placement, const std::string& where) {
  require(!c10::InferenceMode::is_enabled(), where,
          "called in inference mode, but tensors that are made in inference mode cannot be trained. Call fully_shard "
          "outside of c10::InferenceMode");
  require(torch::autograd::get_current_graph_task_id() == -1, where,
          "called inside a backward. Call fully_shard before training");
  for (const auto* given : given_modules(tree))
    require(group_at(*given) == nullptr, where, "module ", given->type,
            " was sharded before. Call fully_shard once per module; fsdp::group_of(module) finds its group");
  auto check_group = [&](const std::shared_ptr<runtime::ParamGroup>& group) {
    require(!group || &group->placement().process_group() == &placement.process_group(), where,
            "one process group must shard ", tree.type, " and everything inside it, but '", group ? group->name() : "",
            "' is sharded over a different process group. Set the same FullyShardOptions::process_group in every call; "
            "meshes may differ if they were laid out over the same process group and have all its ranks");
  };
  visit_nodes(tree, [&](const ModuleNode& node) {
    check_group(group_at(node));
    for (const auto& parameter : node.parameters) check_group(group_of_parameter(parameter.tensor));
  });
  // TorchScript modules built in C++ have no training flag either, but they have parameters.
  const bool has_parameters = !subtree_parameters(tree).empty();
  require(tree.has_training_flag || has_parameters, where, "TorchScript module ", tree.type,
          " is frozen: its parameters are constants. Shard the module before torch::jit::freeze");
  require(has_parameters, where, "there are no parameters under ", tree.type,
          ". Register parameters and submodules with register_parameter and register_module; layers in a std::vector "
          "belong in a torch::nn::ModuleList. A module without parameters needs no call of its own: it runs in the "
          "scope of the model around it");
}

// For a module whose parameters are all in groups already: throws UsageError if a module around it was sharded first.
void check_order(const ModuleNode& tree, const std::string& where) {
  if (tree.identity == nullptr) return;
  std::unordered_set<const runtime::ParamGroup*> inside;
  visit_nodes(tree, [&](const ModuleNode& node) { inside.insert(group_at(node).get()); });
  visit_nodes(tree, [&](const ModuleNode& node) {
    for (const auto& parameter : node.parameters) {
      const auto owner = group_of_parameter(parameter.tensor);
      // It is no error if the owner's module is not around this one: a submodule may be registered in both.
      const bool is_around = owner && !inside.contains(owner.get()) && owner->modules.contains(tree.identity);
      require(!is_around, where, "all parameters of ", tree.type, " are in the group '", owner ? owner->name() : "",
              "' of an enclosing module, which is already sharded. Shard the inner modules first, then the modules "
              "that contain them");
    }
  });
}

}  // namespace

void check_call(const FullyShardOptions& options, const ModuleNode& tree, const runtime::Placement& placement,
                const std::string& where) {
  check_module(tree, placement, where);
  const auto& reshard = options.reshard_after_forward;
  require(!reshard || !reshard->after_forward() || options.strategy == Strategy::kFullShard, where,
          "FullyShardOptions::reshard_after_forward frees whole parameters after forward, but the strategy ",
          options.strategy,
          " keeps them. Leave reshard_after_forward unset, or set FullyShardOptions::strategy to Strategy::kFullShard");
  const int all = placement.shard().world_size(), within = reshard ? reshard->ranks().value_or(all) : all;
  require(within > 0 && all % within == 0, where,
          "FullyShardOptions::reshard_after_forward: expected a number in Reshard::within that divides the ", all,
          all == 1 ? " rank" : " ranks", " that the rows are sharded over, found ", within);
  require(options.bucket_cap_bytes > 0, where,
          "FullyShardOptions::bucket_cap_bytes: expected more than 0 bytes, found ", options.bucket_cap_bytes);
  require(options.max_prefetched_bytes.value_or(0) >= 0, where,
          "FullyShardOptions::max_prefetched_bytes: expected 0 or more, found ",
          options.max_prefetched_bytes.value_or(0));
  if (options.mp_policy) check_precision(*options.mp_policy, tree, where);
  require(
      !options.offload_policy || !options.disk_policy, where,
      "FullyShardOptions::offload_policy and disk_policy are both set. For a model on an accelerator, offload_policy "
      "keeps state in host memory; for a model on the CPU, disk_policy keeps state in files. Set only one of them");
  check_devices(options, tree, placement.process_group().device(), where);
  require(!options.param_init_fn || tree.module != nullptr || tree.identity == nullptr, where,
          "FullyShardOptions::param_init_fn works on torch::nn modules, found ", tree.type,
          ". Initialise its parameters before fully_shard");
  require(!options.auto_wrap_policy.descends || options.auto_wrap_policy.wraps, where,
          "FullyShardOptions::auto_wrap_policy sets 'descends' but not 'wraps', which says what to wrap. Set 'wraps' "
          "too");
  require(!options.auto_wrap_policy.wraps || tree.module != nullptr, where,
          "FullyShardOptions::auto_wrap_policy works on one torch::nn module, found ", tree.type,
          ". Call fully_shard on the submodules instead");
  std::unordered_map<const at::TensorImpl*, std::string> names;
  for (auto& [name, tensor] : subtree_parameters(tree)) names[tensor.unsafeGetTensorImpl()] = std::move(name);
  for (const auto& ignored : options.ignored_params) {
    require(ignored.defined(), where,
            "FullyShardOptions::ignored_params has an undefined tensor. Leave the undefined tensor out");
    const auto known = names.find(ignored.unsafeGetTensorImpl());
    require(known != names.end(), where, "FullyShardOptions::ignored_params has a tensor of sizes ", ignored.sizes(),
            " that is not a parameter under ", tree.type,
            ". Take the tensor from the module's parameters(), not a view or a copy of it");
    require(!group_of_parameter(ignored), where, "FullyShardOptions::ignored_params has '", known->second,
            "', which an earlier call has sharded. Ignore the parameter in that call");
  }
}

void check_parameters(const std::vector<runtime::NamedParameter>& parameters, const ModuleNode& tree,
                      const std::string& where) {
  std::unordered_set<const at::TensorImpl*> sharded;
  std::vector<Extent> extents;
  for (const auto& parameter : parameters) {
    check_parameter(parameter, where);
    sharded.insert(parameter.tensor.unsafeGetTensorImpl());
    if (parameter.tensor.numel() > 0) extents.push_back(extent_of(parameter, true));
  }
  // A parameter that shares memory with another tensor is refused, because it could not do so after sharding.
  const auto all = subtree_tensors(tree);
  for (const auto& other : all) {
    const auto& tensor = other.tensor;
    const bool is_itself = sharded.contains(tensor.unsafeGetTensorImpl());  // registered twice, or also as a buffer
    if (is_itself || tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0 ||
        group_of_parameter(tensor))
      continue;
    if (!tensor.is_meta()) require_memory(tensor, where + "'" + other.name + "' ");
    extents.push_back(extent_of(other, false));
  }
  std::ranges::stable_sort(extents, {}, &Extent::begin);
  Extent any, last_sharded;  // the extents that end last among all earlier extents, and among the earlier sharded ones
  for (const auto& extent : extents) {
    const auto& before = extent.is_sharded ? any : last_sharded;
    require(before.end <= extent.begin, where, "'", before.name ? *before.name : "", "' and '", *extent.name,
            "' are different tensors that share memory, which they could not do after fully_shard. Tie weights by "
            "assigning the tensor itself (a->weight = b->weight), make views in forward, and clone() a tensor that "
            "must keep its values");
    if (extent.end > any.end) any = extent;
    if (extent.is_sharded && extent.end > last_sharded.end) last_sharded = extent;
  }
  if (parameters.empty()) check_order(tree, where);
}

void require_put_off(const runtime::NamedParameter& tensor, const std::string& where) {
  require(!runtime::was_written_since(tensor.tensor), where, "'", tensor.name,
          "' was written after fsdp::deferred_init, when the tensor had no memory, so these values are lost. Write the "
          "values inside deferred_init, or in fsdp::initialize after fully_shard");
}

void require_between_steps(runtime::ParamGroup& group, const std::string& operation) {
  require(
      !group.is_inside() && !group.is_in_hook() && group.local_rows_depth == 0 &&
          torch::autograd::get_current_graph_task_id() == -1,
      group.where(operation), "a scope, a backward or a LocalRows is open on '", group.name(),
      "'. Close it first and make this call between steps; after an exception call reset_iter_state() on every rank");
  group.require_no_waiting_gradients(operation);
}

void require_values(const std::vector<std::shared_ptr<runtime::ParamGroup>>& groups, const std::string& operation) {
  std::string first;
  size_t count = 0;
  for (const auto& group : groups)
    for (const auto& slot : group->slots())
      if (slot.rows_tensor.is_meta() && count++ == 0) first = slot.name();
  require(count == 0, groups.front()->where(operation), "parameters on the meta device have no values (in total ",
          count, ", the first is '", first,
          "'). Give them memory with fsdp::to_empty(model, device), and then values with fsdp::initialize or "
          "fsdp::load_checkpoint. With FullyShardOptions::param_init_fn or fsdp::deferred_init, fully_shard does both");
}

void check_buffers(const std::vector<runtime::NamedParameter>& buffers, const std::string& where) {
  for (const auto& [name, tensor] : buffers)
    require(special_kind(tensor) == nullptr && tensor.layout() == at::kStrided && !tensor.is_inference() &&
                at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
            where,
            "FullyShardOptions::sync_module_states or broadcast_buffers has to write to all buffers, but buffer '",
            name,
            "' cannot be written, because it is sparse, quantised, nested, expanded, a zero tensor, conjugated, "
            "negated or made in inference mode. Register a plain tensor, e.g. the buffer's clone()");
}

std::shared_ptr<ProcessGroup> check_cuts(const ModuleNode& tree, const runtime::Placement& placement,
                                         const std::string& where) {
  std::shared_ptr<ProcessGroup> axis;
  visit_nodes(tree, [&](const ModuleNode& node) {
    for (const auto& parameter : node.parameters) {
      const auto cut = cut_of(node, parameter);
      if (!cut) continue;
      const auto& tensor = parameter.tensor;
      const bool fits = (cut->dim == 0 || cut->dim == 1) && cut->dim < tensor.dim() && cut->fused >= 1 &&
                        (cut->fused == 1 || cut->dim == 0) && tensor.size(0) % cut->fused == 0;
      require(cut->axis && (fits || group_of_parameter(tensor)), where, "'", parameter.name, "' of sizes ",
              tensor.sizes(),
              ": expected a TensorCut whose axis is set, whose dim is 0 or 1 and exists in the parameter, and whose "
              "fused divides the size of dim 0 (fused > 1 only with dim 0); found dim = ",
              cut->dim, ", fused = ", cut->fused, cut->axis ? ", axis set" : ", axis not set");
      require(!axis || axis == cut->axis, where, "'", parameter.name,
              "' is split over a different tensor axis than the parameters before it. Give all layers the same process "
              "group");
      axis = cut->axis;
    }
  });
  if (!axis) return axis;
  std::vector<const ProcessGroup*> sharing{&placement.shard()};
  for (const auto& replicas : placement.replicate()) sharing.push_back(replicas.get());
  const auto& have_parts = axis->global_ranks();
  for (const auto* ranks : sharing)
    for (const int rank : ranks->global_ranks())
      require(rank == ranks->global_ranks()[static_cast<size_t>(ranks->rank())] ||
                  std::ranges::find(have_parts, rank) == have_parts.end(),
              where, "rank ", rank,
              " holds a different part of the parameters than this rank, because they are split over a tensor axis, so "
              "the two ranks ",
              "cannot shard the same rows. Shard over a different axis of the mesh (FullyShardOptions::mesh)");
  return axis;
}

}  // namespace fsdp
