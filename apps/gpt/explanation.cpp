#include "explanation.h"

#include <sstream>

#include "frame/bytes_text.h"

namespace gpt {
namespace {

using frame::bytes_text;

struct ForwardAndBackward {
  int64_t forward = 0, backward = 0;
};

// Returns the bytes that a rank sends in one attention. All methods send keys, values and their gradients; "heads" also
// sends queries and outputs. `part` is the number of bytes of one rank's keys, and `n` the number of ranks.
ForwardAndBackward bytes_of_attention(const std::string& method, int64_t part, int64_t n) {
  const int64_t rounds = 2 * (n - 1) * part;
  if (method == "heads") return {4 * part * (n - 1) / n, 4 * part * (n - 1) / n};
  if (method == "gather") return {rounds, rounds};
  if (method == "ring-self-attention") return {rounds, 3 * rounds};
  return {rounds, rounds + 2 * n * part};
}

}  // namespace

std::string axes_text(const AxisSizes& sizes, const fsdp::Explanation& rows, const Arguments& arguments) {
  const auto& pipeline = arguments.pipeline;
  const bool has_pipe = sizes.pipe > 1;
  const int64_t chunks = has_pipe && pipeline.schedule == "interleaved" ? pipeline.chunks : 1;
  const int64_t micro_batches = has_pipe ? pipeline.micro_batches : 1;
  const int64_t blocks = (arguments.layers + sizes.pipe - 1) / sizes.pipe;
  const int64_t forwards = arguments.activations.is_on() ? 2 : 1;
  // `activations` is the size of a block's output for the tokens of a step.
  const int64_t element = arguments.precision.bf16 || arguments.precision.fp16 ? 2 : 4;
  const int64_t tokens =
      arguments.batch * arguments.update_freq * ((arguments.seq + sizes.sequence - 1) / sizes.sequence);
  const int64_t activations = tokens * arguments.dim * element;
  std::ostringstream out;
  out << "mesh: pipe " << sizes.pipe << " x data " << sizes.data << " x sequence " << sizes.sequence << " x tensor "
      << sizes.tensor << "; in a step rank 0 sends at most\n";
  if (has_pipe)
    out << "  pipe: activations of " << micro_batches << " micro-batches"
        << (chunks > 1 ? " and their gradients, " : ", ") << bytes_text((2 * chunks - 1) * activations)
        << "; there are " << sizes.pipe * chunks << " stages\n";
  if (rows.shards > 1)
    out << "  data" << (sizes.sequence > 1 ? " and sequence" : "") << ": rows of " << rows.groups.size()
        << " groups in all-gathers, " << bytes_text(rows.gathers_bytes * micro_batches * arguments.update_freq)
        << (has_pipe ? ", since every micro-batch gathers" : "") << "; gradients in reduce-scatters, "
        << bytes_text(rows.reduce_scatters_bytes) << '\n';
  if (sizes.sequence > 1) {
    const auto moved = bytes_of_attention(arguments.sequence_method, activations / sizes.tensor, sizes.sequence);
    out << "  sequence: keys and values of " << blocks << " blocks, " << bytes_text(moved.forward * blocks * forwards)
        << " in forward and " << bytes_text(moved.backward * blocks) << " in backward (" << arguments.sequence_method
        << ")\n";
  }
  if (sizes.tensor > 1) {
    const int64_t all_reduce = 2 * activations * (sizes.tensor - 1) / sizes.tensor;
    out << "  tensor: " << (2 * forwards + 2) * blocks << " all-reduces of activations in " << blocks << " blocks, "
        << bytes_text((2 * forwards + 2) * blocks * all_reduce) << '\n';
  }
  return out.str();
}

}  // namespace gpt
