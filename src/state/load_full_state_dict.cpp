#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fsdp/state_dict.h>

#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "state/match_entries.h"
#include "state/ranks.h"
#include "state/sent_elements.h"
#include "state/torch_dtype.h"

namespace fsdp {
namespace {

using namespace state;
using WholeEntries = std::vector<std::pair<std::string, at::Tensor>>;

constexpr char kWhoseTensors[] = "rank 0's tensors";

// Returns the names, dtypes and sizes of the entries as text. Rank 0 sends it to the other ranks before the values.
std::string description_of(const WholeEntries& entries) {
  Manifest manifest;
  for (const auto& [name, tensor] : entries) {
    require(tensor.defined() && !tensor.is_meta() && tensor.layout() == at::kStrided, "tensor '", name,
            "': expected a strided tensor with values, found ",
            !tensor.defined()  ? "an undefined one"
            : tensor.is_meta() ? "one on the meta device"
                               : "one with a different layout");
    require(manifest.model.emplace(name, TensorRecord{dtype_of(tensor.scalar_type(), name), tensor.sizes().vec(), {}})
                .second,
            "tensor '", name, "': the same name occurs more than once");
  }
  return manifest_text(std::move(manifest));
}

// Rank 0 sends the values of all entries, and each rank copies its rows. A rank that fails continues, because other
// ranks wait for it; all ranks throw its error at the end.
void send_all(const WholeEntries& entries, const TensorRecords& records, const ModelTensors& tensors,
              const EntryMatch& match, const Ranks& ranks) {
  const at::NoGradGuard no_grad;
  FirstError error;
  std::map<std::string, at::Tensor> own;
  if (ranks.rank() == 0) own.insert(entries.begin(), entries.end());
  for (size_t i = 0; i < tensors.all.size(); ++i) {
    if (!match.names[i]) continue;
    const auto& name = *match.names[i];
    const auto& record = records.at(name);
    const auto& tensor = tensors.all[i];
    const auto rows = at::empty(tensor.tensor.sizes(), scalar_type_of(record.dtype));
    at::Tensor flat;  // the entry's values as one dimension; defined only on rank 0
    const SentElements sent{.tensor = tensor.name(),
                            .elements = {0, record.numel()},
                            .element_bytes = bytes_of(record.dtype),
                            .root = 0,
                            .fill = [&](ElementRange some, std::span<std::byte> bytes) {
                              error.run([&] {
                                if (!flat.defined()) flat = own.at(name).detach().reshape({-1});
                                const auto values = on_cpu(flat, some.first, some.count);
                                std::memcpy(bytes.data(), bytes_in(values).data(), bytes.size());
                              });
                            }};
    send_elements(sent, tensor.elements(), mutable_bytes_in(rows), ranks);
    error.run([&] { tensor.tensor.copy_(rows); });
  }
  ranks.all_do([&] { error.rethrow(); });
}

std::vector<std::string> load_whole_entries(const WholeEntries& entries, const ModuleNode& tree,
                                            const LoadOptions& options) {
  const std::string call = "load_full_state_dict";
  const auto tensors = state::tensors_of(tree, call);
  const Ranks ranks(tensors.ranks, call);
  const auto description =
      ranks.together([&] { return ranks.rank() == 0 ? description_of(entries) : std::string(); })[0];
  Manifest manifest;
  EntryMatch match;
  ranks.all_do([&] {
    manifest = parse_manifest_part(description, kWhoseTensors);
    match = match_entries(manifest.model, tensors, options);
    require_match(match, kWhoseTensors);
  });
  send_all(entries, manifest.model, tensors, match, ranks);
  return std::move(match.allowed);
}

}  // namespace

std::vector<std::string> load_full_state_dict(const WholeEntries& entries, const Group& model,
                                              const LoadOptions& options) {
  return load_whole_entries(entries, *GroupView::of(model).tree, options);
}
std::vector<std::string> load_full_state_dict(const WholeEntries& entries, torch::nn::Module& model,
                                              const LoadOptions& options) {
  return load_whole_entries(entries, *module_tree(model), options);
}

}  // namespace fsdp
