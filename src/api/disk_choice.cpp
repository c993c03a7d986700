#include "api/disk_choice.h"

namespace fsdp {

int64_t expected_bytes(const PlannedGroup& group, int ranks) {
  int64_t bytes = 0;
  for (const auto& parameter : group.parameters)
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) * (parameter.tensor.requires_grad() ? 4 : 1);
  return (bytes + ranks - 1) / ranks;
}

std::vector<bool> choose_on_disk(std::span<const int64_t> bytes, int64_t taken, int64_t limit) {
  std::vector<bool> is_on_disk;
  for (const int64_t wanted : bytes) {
    is_on_disk.push_back(wanted > limit - taken);
    if (!is_on_disk.back()) taken += wanted;
  }
  return is_on_disk;
}

}  // namespace fsdp
