#include "state/match_entries.h"

#include <algorithm>
#include <set>

#include "state/format/format_error.h"
#include "state/format/sizes.h"

namespace fsdp::state {
namespace {

constexpr size_t kListed = 100;

bool may_differ(const LoadOptions& options, const std::string& name) {
  if (options.strict) return false;
  return options.may_differ.empty() || std::any_of(options.may_differ.begin(), options.may_differ.end(),
                                                   [&](const std::string& begin) { return name.starts_with(begin); });
}

}  // namespace

void note_difference(EntryMatch& match, const LoadOptions& options, const std::string& name, const std::string& what) {
  (may_differ(options, name) ? match.allowed : match.refused).push_back(name + ": " + what);
}

EntryMatch match_entries(const TensorRecords& saved, const ModelTensors& tensors, const LoadOptions& options) {
  EntryMatch match;
  std::set<std::string> taken;
  for (const auto& tensor : tensors.all) {
    auto& name = match.names.emplace_back();
    for (const auto& candidate : tensor.names) {
      taken.insert(candidate);
      if (!name && saved.contains(candidate)) name = candidate;
    }
    if (!name) {
      note_difference(match, options, tensor.name(), "is missing in the checkpoint");
    } else if (const auto& sizes = saved.at(*name).sizes; sizes != tensor.sizes) {
      note_difference(match, options, tensor.name(),
                      "has sizes " + text_of(tensor.sizes) + "; the checkpoint was saved with " + text_of(sizes));
      name.reset();
    }
  }
  for (const auto& [name, record] : saved)
    if (!taken.contains(name) && !tensors.elsewhere.contains(name))
      note_difference(match, options, name, "is in the checkpoint, but the model has no such tensor");
  return match;
}

void require_match(const EntryMatch& match, const std::string& path) {
  if (match.refused.empty()) return;
  std::string lines;
  for (size_t i = 0; i < std::min(kListed, match.refused.size()); ++i) lines += "\n  " + match.refused[i];
  if (match.refused.size() > kListed) lines += "\n  and " + std::to_string(match.refused.size() - kListed) + " more";
  throw FormatError(path + ": the checkpoint does not match the model and the optimizer; entries that differ: " +
                    std::to_string(match.refused.size()) +
                    ". Load it into the model and the optimizer that it was saved from, or allow "
                    "differences in LoadOptions (strict = false, may_differ):" +
                    lines);
}

}  // namespace fsdp::state
