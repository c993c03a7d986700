#include "axes.h"

#include <stdexcept>

#include "frame/sequence_methods.h"

namespace gpt {

AxisSizes axis_sizes(const Arguments& arguments, int ranks) {
  AxisSizes sizes{.pipe = arguments.pipeline.ranks,
                  .sequence = static_cast<int>(arguments.sequence_ranks),
                  .tensor = static_cast<int>(arguments.tensor_ranks)};
  const int64_t others = int64_t{sizes.pipe} * sizes.sequence * sizes.tensor;
  if (ranks % others != 0)
    throw std::invalid_argument(
        "--pipe times --sequence times --tensor must divide the number of ranks, found the product " +
        std::to_string(others) + " and the number of ranks " + std::to_string(ranks));
  sizes.data = static_cast<int>(ranks / others);
  return sizes;
}

std::optional<fsdp::SequenceParallel> Axes::open_sequence() const {
  if (!sequence) return std::nullopt;
  return std::optional<fsdp::SequenceParallel>(std::in_place, sequence, method);
}

Axes make_axes(const fsdp::DeviceMesh& mesh, const Arguments& arguments) {
  Axes axes{.method = frame::sequence_methods().at(arguments.sequence_method)};
  const auto group_of = [&](const char* axis) { return mesh.size(axis) > 1 ? mesh.process_group(axis) : nullptr; };
  axes.pipe = group_of("pipe");
  axes.sequence = group_of("sequence");
  axes.tensor = group_of("tensor");
  return axes;
}

}  // namespace gpt
