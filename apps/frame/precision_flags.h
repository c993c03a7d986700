#pragma once
/// \file
/// The flags --fp16, --bf16 and --autocast, alike in all programs that train.

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

/// Of --fp16 and --bf16 one may be given.
void add_precision_flags(CLI::App& app, PrecisionFlags& flags);

/// What is gathered and computed with is fp16 or bf16, --autocast alone is bf16. Gradients of bf16 are summed in fp32,
/// of fp16 in fp16. Results are fp32, for losses. Without flags nothing is set.
void set_precision(fsdp::TrainerOptions& options, const PrecisionFlags& flags);

}  // namespace frame
