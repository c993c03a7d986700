#include "runtime/second_shard.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "memory/block.h"

namespace fsdp::runtime {

void SecondShard::take(const memory::FlatPart& whole, const Communicator& ranks,
                       const std::shared_ptr<memory::ByteAccount>& account) {
  const at::NoGradGuard no_grad;
  const int64_t length = (whole.numel + ranks.world_size() - 1) / ranks.world_size();
  offsets_.clear();
  for (int64_t rank = 0; rank <= ranks.world_size(); ++rank) offsets_.push_back(std::min(rank * length, whole.numel));
  const auto* own = &offsets_[static_cast<size_t>(ranks.rank())];
  slice_ = {whole.form, own[1] - own[0]};
  slice_.buffer = std::make_shared<memory::FlatBuffer>(memory::allocate(whole.form.device, slice_.bytes()),
                                                       slice_.bytes(), account, memory::ByteClass::kWhole);
  slice_.tensor().copy_(whole.tensor().slice(0, own[0], own[1]));
}

std::shared_ptr<Work> SecondShard::start_gather(const memory::FlatPart& whole, Communicator& ranks, Tag tag) const {
  return ranks.all_gather(whole.tensor(), slice_.tensor(), offsets_, std::move(tag));
}

}  // namespace fsdp::runtime
