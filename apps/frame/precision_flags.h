#pragma once
/// \file
/// Defines the flags --fp16, --bf16 and --autocast, which all programs that train share.

namespace CLI {
class App;
}
namespace fsdp {
struct TrainerOptions;
}

namespace frame {

struct PrecisionFlags {
  bool fp16 = false, bf16 = false, autocast = false;
};

/// Adds the flags. A user may give --fp16 or --bf16, but not both.
void add_precision_flags(CLI::App& app, PrecisionFlags& flags);

/// Sets the precision of the trainer. With --fp16 and --bf16 all-gathers and computation have this dtype, and outputs
/// of the model are cast to fp32 for the loss. Gradients of bf16 are summed in fp32, and gradients of fp16 in fp16.
/// With --autocast, LibTorch's autocast chooses the dtype of each operator, which is bf16 unless --fp16 is given.
/// Without these flags nothing is set.
void set_precision(fsdp::TrainerOptions& options, const PrecisionFlags& flags);

}  // namespace frame
