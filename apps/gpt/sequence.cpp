#include "sequence.h"

#include <fsdp/device_mesh.h>

#include <stdexcept>

namespace gpt {

const std::map<std::string, fsdp::SequenceMethod>& sequence_methods() {
  using enum fsdp::SequenceMethod;
  static const std::map<std::string, fsdp::SequenceMethod> methods = {{"head-tail", kHeadTail},
                                                                      {"ring", kRing},
                                                                      {"gather", kGather},
                                                                      {"heads", kHeads},
                                                                      {"ring-self-attention", kRingSelfAttention}};
  return methods;
}

std::optional<fsdp::SequenceParallel> SequenceAxis::open() const {
  if (!group) return std::nullopt;
  return std::optional<fsdp::SequenceParallel>(std::in_place, group, method);
}

SequenceAxis sequence_axis(const Arguments& arguments) {
  const int64_t ranks = arguments.sequence_ranks, all = fsdp::world_size();
  if (all % ranks != 0)
    throw std::invalid_argument("--sequence must divide the number of ranks, found " + std::to_string(ranks) + " of " +
                                std::to_string(all));
  SequenceAxis axis{.method = sequence_methods().at(arguments.sequence_method),
                    .share = fsdp::rank() / ranks,
                    .shares = all / ranks};
  if (ranks == 1) return axis;
  const auto mesh =
      fsdp::init_device_mesh({static_cast<int>(axis.shares), static_cast<int>(ranks)}, {"data", "sequence"});
  axis.group = mesh.process_group("sequence");
  return axis;
}

}  // namespace gpt
