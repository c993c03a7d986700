#include "runtime/reduction.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "memory/part_storage.h"

namespace fsdp::runtime {

Reduction reduce(const GroupIdentity& group, FlatParams& flat, Contribution contribution,
                 std::optional<double> divide_factor) {
  auto& [pieces, votes, charges] = contribution;
  Tag tag = group.tag(group.name, std::move(votes));
  if (divide_factor) tag.subject += c10::str(" divided by ", *divide_factor);  // or ranks could differ unseen
  const auto& placement = group.placement;
  const int64_t slice = flat.layout().slice_numel(placement.rank());
  const size_t bytes = static_cast<size_t>(slice) * flat.element_size();
  auto output = std::make_shared<memory::FlatBuffer>(flat.gradient_memory().take(bytes), bytes,
                                                     group.rank_state->shared_account(), memory::ByteClass::kGradient);
  auto work = placement.reductions().reduce_scatter(memory::flat_tensor(output, 0, slice, flat.dtype()),
                                                    std::move(pieces), flat.layout().boundaries,
                                                    1.0 / divide_factor.value_or(placement.divisor()), std::move(tag));
  return {0, std::move(charges), std::move(output), std::move(work)};
}

}  // namespace fsdp::runtime
