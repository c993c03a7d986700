#pragma once
/// \file
/// Where a rank's bytes go.

#include <fsdp/group.h>

#include <iosfwd>
#include <string>
#include <vector>

namespace torch::optim {
class Optimizer;
}

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// What a rank holds for a model, by class: now, and at most since Group::reset_peak_stats(). docs/memory.md says what
/// each class is and how many bytes it has.
struct MemoryReport {
  /// One group.
  struct OfGroup {
    std::string name;  ///< as Group::name()
    /// What a checkpoint of activations keeps is that of the first group it reads.
    ByteCounts bytes;
  };

  int rank = 0;        ///< this rank's number in the process group of the model
  int world_size = 1;  ///< the number of its ranks
  /// Of all groups of this rank and process group. Its peaks are those of the sums: at most the sums of the groups'.
  ByteCounts all;
  /// Under the model, in the order of the module tree.
  std::vector<OfGroup> groups;

  /// {"rank": 0, "world_size": 2, "all": {"rows": {"current": 4096, "peak": 4096}, ...}, "groups": [{"name":
  /// "blocks.0", "rows": ...}, ...]}
  std::string to_json() const;
};

/// Takes the counts of the model's groups. Not collective; any thread, between steps also with an optimizer: an
/// optimizer of torch::optim keeps its state apart, which is found by the parameters under the model and added to
/// `optimizer`. Its peak is then what it has now.
///
///     std::cout << fsdp::memory_report(model, optimizer);
MemoryReport memory_report(const Group& model);
/// The same with the state of an optimizer of torch::optim; for those of fsdp::optim, which are counted anyway, it
/// changes nothing.
MemoryReport memory_report(const Group& model, const torch::optim::Optimizer& optimizer);

/// A table: a line for all groups and one for each, with a column for each class that has any bytes, "now / peak".
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
