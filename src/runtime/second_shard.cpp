#include "runtime/second_shard.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "memory/block.h"

namespace fsdp::runtime {

void SecondShard::take(const memory::FlatPart& whole, const Communicator& ranks,
                       const std::shared_ptr<memory::ByteAccount>& account) {
  const at::NoGradGuard no_grad;
  slice_ = {whole.form, whole.numel / ranks.world_size()};
  slice_.buffer = std::make_shared<memory::FlatBuffer>(memory::allocate(whole.form.device, slice_.bytes()),
                                                       slice_.bytes(), account, memory::ByteClass::kWhole);
  slice_.tensor().copy_(whole.tensor().narrow(0, ranks.rank() * slice_.numel, slice_.numel));
}

}  // namespace fsdp::runtime
