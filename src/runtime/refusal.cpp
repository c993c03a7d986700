#include "runtime/refusal.h"

#include <torch/csrc/jit/serialization/pickler.h>

#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

struct Difference {
  std::string expected, found;
};

Difference of_whole(const ParamSlot& slot, Verdict verdict) {
  const auto whole = str_cat("the whole parameter, sizes ", slot.sizes());
  switch (verdict) {
    case Verdict::kRefuseOutsideScope:
      return {"an open forward scope", whole};
    case Verdict::kRefuseRecording:
      return {"a forward scope or a torch::NoGradGuard", whole};
    case Verdict::kRefuseReplace:
    case Verdict::kRefuseReplaceInScope:
      return {"a parameter that is not sharded", whole};
    default:
      return {"this rank's rows", whole};
  }
}

Difference of_rows(const ParamSlot& slot, const at::Tensor& tensor, const at::Tensor* misfit, Verdict verdict) {
  const auto [first, count] = slot.rows();
  const auto all = slot.row_sizes()[0];
  const auto rows = str_cat("this rank's rows ", first, " to ", first + count, " of ", all, ", sizes ", tensor.sizes());
  const auto other = [&] {
    return is_marked(*misfit->unsafeGetTensorImpl()) ? str_cat("another sharded tensor of sizes ", misfit->sizes())
                                                     : str_cat("one of sizes ", misfit->sizes());
  };
  switch (verdict) {
    case Verdict::kRefuseOperand:
      return {str_cat("an operand that fits the whole parameter's sizes ", slot.sizes(), " or ", rows), other()};
    case Verdict::kRefuseWriteFromRows:
      return {str_cat("a tensor to write to that fits ", rows), other()};
    case Verdict::kRefuseResult:
      return {str_cat("all rows, as of the parameter's sizes ", slot.sizes()), rows};
    case Verdict::kRefuseGradientInScope:
      return {"no open scope", "one, and " + rows};
    case Verdict::kRefuseReplace:
    case Verdict::kRefuseReplaceInScope:
      return {"a parameter that is not sharded", rows};
    default:
      return {str_cat("the whole parameter, as in a forward scope, sizes ", slot.sizes()), rows};
  }
}

constexpr const char* kWithoutMaxNorm =
    "an Embedding with max_norm writes its table in forward, on each rank other rows of it. Make it without max_norm, "
    "and normalise the table before each step, in a fsdp::LocalRows and under a torch::NoGradGuard: "
    "table->weight.copy_(torch::renorm(table->weight, /*p=*/2, /*dim=*/0, max_norm))";

// As the user called it.
std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name().name;
  return name == "aten::_has_compatible_shallow_copy_type" ? "aten::set_data" : name;
}

using Metadata = std::unordered_map<std::string, bool>;

void require_no_rows(const at::Tensor& tensor) {
  const auto part = registry().find(tensor);
  if (!part || part->kind == PartKind::kWhole) return;
  const auto& group = *part->group;
  const auto& slot = part->group->slots()[part->slot];
  require(group.placement().shard().world_size() == 1 || group.local_rows_depth > 0, group.where("torch::save"),
          noun_of(part->kind), slot.name(), "' is sharded: expected all of it, of sizes ", slot.sizes(),
          ", found this rank's rows, of sizes ", tensor.sizes(),
          ". fsdp::save(model, path) writes what torch::save writes of a plain model, fsdp::save_checkpoint the rows "
          "of all ranks; inside summon_full_params torch::save is as ever; if you mean the rows, open a "
          "fsdp::LocalRows");
}

// Asks `known` too, if it is there.
void observe(std::optional<std::pair<torch::jit::BackendMetaPtr, torch::jit::BackendMetaPtr>>& known) {
  const auto former = known;
  known.emplace(
      [former](const at::Tensor& tensor, Metadata& metadata) {
        require_no_rows(tensor);
        if (former) former->first(tensor, metadata);
      },
      [former](const at::Tensor& tensor, Metadata& metadata) {
        if (former) former->second(tensor, metadata);
      });
}

}  // namespace

const char* noun_of(PartKind part) {
  switch (part) {
    case PartKind::kGradient:
      return "the gradient of parameter '";
    case PartKind::kResult:
      return "what was computed from the rows of parameter '";
    default:
      return "parameter '";
  }
}

void refuse(const c10::OperatorHandle& op, const Part& part, const at::Tensor& tensor, const at::Tensor* misfit,
            Verdict verdict) {
  const auto& slot = part.group->slots()[part.slot];
  const auto [expected, found] =
      part.kind == PartKind::kWhole ? of_whole(slot, verdict) : of_rows(slot, tensor, misfit, verdict);
  const auto name = name_of(op);
  throw UsageError(part.group->where(name) + noun_of(part.kind) + slot.name() + "' is sharded (expected " + expected +
                   ", found " + found + "): " +
                   (name == "aten::embedding_renorm_" ? kWithoutMaxNorm : ways_out(verdict)));
}

void observe_written_tensors() {
  static const bool once = [] {
    auto& of_device = torch::jit::GetBackendMetaSerialization();
    for (const auto device : {at::kCPU, at::kCUDA, at::kPrivateUse1}) observe(of_device[static_cast<size_t>(device)]);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace fsdp::runtime
