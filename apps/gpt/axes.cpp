#include "axes.h"

#include <stdexcept>

#include "frame/sequence_methods.h"

namespace gpt {

std::optional<fsdp::SequenceParallel> Axes::open_sequence() const {
  if (!sequence) return std::nullopt;
  return std::optional<fsdp::SequenceParallel>(std::in_place, sequence, method);
}

Axes make_axes(const Arguments& arguments) {
  const int64_t sequence = arguments.sequence_ranks, tensor = arguments.tensor_ranks, all = fsdp::world_size();
  if (all % (sequence * tensor) != 0)
    throw std::invalid_argument("--sequence times --tensor must divide the number of ranks, found " +
                                std::to_string(sequence * tensor) + " of " + std::to_string(all));
  Axes axes{.method = frame::sequence_methods().at(arguments.sequence_method), .shares = all / sequence / tensor};
  if (sequence * tensor == 1) {
    axes.share = fsdp::rank();
    return axes;
  }
  const auto mesh = fsdp::init_device_mesh(
      {static_cast<int>(axes.shares), static_cast<int>(sequence), static_cast<int>(tensor)},
      {"data", "sequence", "tensor"});
  axes.share = mesh.coordinate("data");
  if (sequence > 1) axes.sequence = mesh.process_group("sequence");
  if (tensor == 1) return axes;
  axes.tensor = mesh.process_group("tensor");
  axes.sharding = mesh[{"data", "sequence"}].flatten("shard");
  return axes;
}

}  // namespace gpt
