#include "runtime/interceptor.h"

#include <torch/csrc/jit/serialization/pickler.h>

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

std::pair<std::string, std::string> difference(const Part& part, const at::Tensor& tensor, const at::Tensor* misfit,
                                               Verdict verdict) {
  using enum Verdict;
  const auto& slot = part.group->slots()[part.slot];
  const auto [first, count] = slot.rows();
  const bool is_whole = part.kind == PartKind::kWhole;
  const auto found = is_whole ? str_cat("the whole parameter, sizes ", slot.sizes())
                              : str_cat("this rank's rows ", first, " to ", first + count, " of ", slot.row_sizes()[0],
                                        ", sizes ", tensor.sizes());
  const auto other = [&] {
    const bool is_sharded = is_marked(*misfit->unsafeGetTensorImpl());
    return str_cat(is_sharded ? "a different sharded tensor of sizes " : "one of sizes ", misfit->sizes());
  };
  switch (verdict) {
    case kRefuseReplace:
      return {"a parameter that is not sharded", found};
    case kRefuseRecording:
      return {"a forward scope or a torch::NoGradGuard", found};
    case kRefuseOperand:
      return {str_cat("an operand that fits the whole parameter's sizes ", slot.sizes(), " or ", found), other()};
    case kRefuseWriteFromRows:
      return {"a target that fits " + found, other()};
    case kRefuseResult:
      return {str_cat("all rows of the whole parameter, sizes ", slot.sizes()), found};
    default:
      if (!is_whole) return {str_cat("the whole parameter, as in a forward scope, sizes ", slot.sizes()), found};
      return {verdict == kRefuseOutsideScope ? "an open forward scope" : "this rank's rows", found};
  }
}

using Metadata = std::unordered_map<std::string, bool>;

}  // namespace

void require_no_rows(const Part& part, const at::Tensor& tensor, const std::string& where, const std::string& instead) {
  const auto& slot = part.group->slots()[part.slot];
  const bool differ = part.kind != PartKind::kWhole && part.group->placement().shard().world_size() > 1;
  require(!differ || part.group->local_rows_depth > 0, where, noun_of(part.kind), slot.name(),
          "' is sharded: expected the whole tensor, of sizes ", slot.sizes(), ", found this rank's rows, of sizes ",
          tensor.sizes(), ". ", instead);
}

const char* noun_of(PartKind part) {
  if (part == PartKind::kGradient) return "the gradient of parameter '";
  return part == PartKind::kResult ? "the result of an operator on the rows of parameter '" : "parameter '";
}

void refuse(const c10::OperatorHandle& op, const Part& part, const at::Tensor& tensor, const at::Tensor* misfit,
            Verdict verdict) {
  const auto& slot = part.group->slots()[part.slot];
  const auto [expected, found] = difference(part, tensor, misfit, verdict);
  auto name = op.operator_name().name;
  if (name == "aten::_has_compatible_shallow_copy_type") name = "aten::set_data";  // what the user called
  throw UsageError(part.group->where(name) + noun_of(part.kind) + slot.name() + "' is sharded (expected " + expected +
                   ", found " + found + "): " + ways_out(verdict));
}

void observe_written_tensors() {
  static std::once_flag observed;
  std::call_once(observed, [] {
    for (const auto device : {at::kCPU, at::kCUDA, at::kPrivateUse1}) {
      auto& known = torch::jit::GetBackendMetaSerialization()[static_cast<size_t>(device)];
      const auto former = known;
      known.emplace(
          [former](const at::Tensor& tensor, Metadata& metadata) {
            if (const auto part = registry().find(tensor))
              require_no_rows(*part, tensor, part->group->where("torch::save"),
                              "fsdp::save(model, path) writes what torch::save writes of a model that is not sharded, "
                              "and fsdp::save_checkpoint writes the rows of all ranks; inside summon_full_params "
                              "torch::save works as usual; to save this rank's rows, open an fsdp::LocalRows");
            if (former) former->first(tensor, metadata);
          },
          [former](const at::Tensor& tensor, Metadata& metadata) {
            if (former) former->second(tensor, metadata);
          });
    }
  });
}

}  // namespace fsdp::runtime
