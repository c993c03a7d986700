#include "runtime/operator_traits.h"

#include <ATen/core/enum_tag.h>
#include <c10/util/flat_hash_map.h>

#include <string>
#include <string_view>
#include <utility>

namespace fsdp::runtime {
namespace {

using enum OperatorKind;

// Operators whose kind follows neither from their tags nor from the form of their names. Names are separated by spaces.
constexpr std::pair<OperatorKind, std::string_view> kKinds[] = {
    {kMetadata,
     "size sym_size stride sym_stride dim numel sym_numel is_same_size is_contiguous storage_offset sym_storage_offset "
     "is_floating_point is_complex is_pinned is_leaf output_nr _version requires_grad_ retain_grad retains_grad "
     "is_inference data"},
    {kDetach, "detach detach_ alias _fw_primal _make_dual"},
    {kCopy, "copy_ to _to_copy contiguous lift_fresh copy _copy_from"},
    {kClone, "clone"},
    {kFill, "zero_ fill_"},
    {kReplace, "set_ set_data _has_compatible_shallow_copy_type resize_ resize_as_"},
    {kViewOrCopy, "reshape flatten ravel pin_memory"},
    // These are views, but with them torch::nn::init::orthogonal_ and others would compute with the sizes of rows.
    {kOther, "view_as reshape_as expand_as"},
    // These are reductions.
    {kOther, "_foreach_norm _foreach_max _foreach_powsum"},
};
constexpr std::string_view kSelectingNames =
    "select slice narrow split split_with_sizes unsafe_split unsafe_split_with_sizes chunk tensor_split unbind unfold "
    "hsplit vsplit dsplit diagonal as_strided";
// Element-wise operators that LibTorch does not tag as such; also their in-place variants.
constexpr std::string_view kPointwiseNames =
    "masked_fill where multiply subtract divide true_divide negative fix clip greater greater_equal less less_equal "
    "isclose rsub hardswish relu6 not_equal absolute";

bool lists(std::string_view names, std::string_view name) {
  for (size_t begin = names.find(name); begin != names.npos; begin = names.find(name, begin + 1)) {
    const size_t end = begin + name.size();
    if ((begin == 0 || names[begin - 1] == ' ') && (end == names.size() || names[end] == ' ')) return true;
  }
  return false;
}

bool is_view(const c10::FunctionSchema& schema) {
  const auto aliases = [](const c10::Argument& result) { return result.alias_info() != nullptr; };
  const auto is_written = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && result.alias_info()->isWrite();
  };
  return std::ranges::any_of(schema.returns(), aliases) && std::ranges::none_of(schema.returns(), is_written);
}

// Returns true if all results are tensors. aten::equal has the tag pointwise, but it returns a bool.
bool gives_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.type()->isSubtypeOf(*c10::TensorType::get()); });
}

bool is_pointwise(const c10::OperatorHandle& op, std::string_view name) {
  if (op.hasTag(at::Tag::pointwise) || lists(kPointwiseNames, name)) return true;
  if (!name.ends_with('_')) return false;
  // LibTorch tags some operators but not their in-place variants.
  name.remove_suffix(1);
  if (lists(kPointwiseNames, name)) return true;
  const auto out_of_place =
      c10::Dispatcher::singleton().findSchema({"aten::" + std::string(name), op.operator_name().overload_name});
  return out_of_place && out_of_place->hasTag(at::Tag::pointwise);
}

OperatorKind kind_of(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  if (!name.starts_with("aten::")) return kOther;
  name.remove_prefix(6);
  for (const auto& [kind, names] : kKinds)
    if (lists(names, name)) return kind;
  if (name.ends_with("_like") || name.starts_with("new_")) return kFactory;
  if (name.starts_with("_foreach_")) return kForeach;
  if (name.starts_with("_fused_ada") || name.starts_with("_fused_sgd")) return kFused;
  if (gives_tensors(op.schema()) && is_pointwise(op, name)) return kPointwise;
  return is_view(op.schema()) ? kView : kOther;
}

// Returns OperatorTraits::selecting_argument, e.g. 1 for select(Tensor self, int dim, int index).
std::optional<size_t> selecting_argument(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  if (!name.starts_with("aten::") || !lists(kSelectingNames, name.substr(6))) return std::nullopt;
  for (const char* dim : {"dim", "dimension"})
    if (const auto argument = op.schema().argumentIndexWithName(dim)) return static_cast<size_t>(*argument);
  return OperatorTraits::kAllDims;
}

OperatorTraits work_out(const c10::OperatorHandle& op) {
  OperatorTraits traits{kind_of(op), op.hasTag(at::Tag::nondeterministic_seeded), selecting_argument(op), 0};
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite())
      traits.written_arguments |= uint64_t{1} << std::min<size_t>(i, 63);
  return traits;
}

// Returns true if the tensor already has the property that the argument `name` asks for.
bool keeps(const at::Tensor& tensor, std::string_view name, const c10::IValue& value) {
  if (name == "dtype") return value.toScalarType() == tensor.scalar_type();
  if (name == "layout") return value.toLayout() == tensor.layout();
  if (name == "device") {
    const auto device = value.toDevice();
    return device == tensor.device() || (!device.has_index() && device.type() == tensor.device().type());
  }
  if (name == "copy" || name == "pin_memory") return !value.toBool();
  if (name == "memory_format")
    return value.toMemoryFormat() == at::MemoryFormat::Preserve || tensor.is_contiguous(value.toMemoryFormat());
  if (name == "other" || name == "from") {
    const auto& other = value.toTensor();
    if (name == "from") return other.is_same(tensor);
    return other.scalar_type() == tensor.scalar_type() && other.device() == tensor.device();
  }
  return name == "non_blocking";
}

}  // namespace

OperatorTraits operator_traits(const c10::OperatorHandle& op) {
  // The key is the schema's address, because a schema lives as long as its operator is registered.
  thread_local ska::flat_hash_map<const c10::FunctionSchema*, OperatorTraits> known;
  const auto* key = &op.schema();
  auto it = known.find(key);
  if (it == known.end()) it = known.emplace(key, work_out(op)).first;
  return it->second;
}

void own_lists(std::span<c10::IValue> values) {
  for (auto& value : values)
    if (value.isList()) value = value.toList().copy();
}

void put(c10::IValue& value, size_t element, const at::Tensor& tensor) {
  if (value.isTensor())
    value = tensor;
  else
    value.toList().set(element, tensor);
}

Conversion conversion_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
  const auto& name = op.operator_name();
  const auto& schema = op.schema().arguments();
  if (name.name == "aten::to" && name.overload_name == "device" && arguments[1].toDevice().is_cpu() &&
      arguments[2].toScalarType() == at::kDouble && !arguments[3].toBool() && !arguments[4].toBool() &&
      arguments[5].isNone())
    return Conversion::kPrints;
  if (name.name != "aten::to" && name.name != "aten::contiguous" && name.name != "aten::lift_fresh" &&
      name.name != "aten::_has_compatible_shallow_copy_type")
    return Conversion::kConverts;
  for (size_t i = 1; i < arguments.size(); ++i)
    if (!arguments[i].isNone() && !keeps(arguments[0].toTensor(), schema[i].name(), arguments[i]))
      return Conversion::kConverts;
  return Conversion::kNothing;
}

}  // namespace fsdp::runtime
