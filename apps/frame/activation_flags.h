#pragma once
/// \file
/// The flags --checkpoint-activations and --offload-activations, alike in all programs that train.

#include <functional>

namespace at {
class Tensor;
}
namespace CLI {
class App;
}
namespace fsdp {
struct CheckpointOptions;
}

namespace frame {

struct ActivationFlags {
  bool checkpoint = false;
  /// As in fairseq it means `checkpoint` too.
  bool offload = false;
  bool is_on() const { return checkpoint || offload; }
};

void add_activation_flags(CLI::App& app, ActivationFlags& flags);

fsdp::CheckpointOptions checkpoint_options(const ActivationFlags& flags);

/// Runs the parts of a model by activation_checkpoint; empty without the flags.
std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& part, const at::Tensor& x)> part_runner(
    const ActivationFlags& flags);

}  // namespace frame
