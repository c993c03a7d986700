#pragma once
/// \file
/// Defines the flags --checkpoint-activations and --offload-activations, which all programs that train share.

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
  /// True if the inputs are kept in host memory. As in fairseq, this flag implies `checkpoint`.
  bool offload = false;
  bool is_on() const { return checkpoint || offload; }
};

void add_activation_flags(CLI::App& app, ActivationFlags& flags);

fsdp::CheckpointOptions checkpoint_options(const ActivationFlags& flags);

/// Returns a function that runs a part of a model by fsdp::activation_checkpoint; the function is empty without the
/// flags.
std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& part, const at::Tensor& x)> part_runner(
    const ActivationFlags& flags);

}  // namespace frame
