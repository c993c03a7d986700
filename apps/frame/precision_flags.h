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

/// Sets the precision of the trainer. --fp16 selects fp16; --bf16, or --autocast alone, selects bf16. Parameters are
/// all-gathered and used in this dtype, and the model's outputs are cast to fp32 for the loss. Gradients of bf16 are
/// summed in fp32, and gradients of fp16 in fp16. With --autocast, LibTorch's autocast runs some operators in fp32.
/// Without these flags nothing is set.
void set_precision(fsdp::TrainerOptions& options, const PrecisionFlags& flags);

}  // namespace frame
