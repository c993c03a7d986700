#include "frame/activation_flags.h"

#include <fsdp/activation_checkpoint.h>

#include <CLI/CLI.hpp>

namespace frame {

void add_activation_flags(CLI::App& app, ActivationFlags& flags) {
  app.add_flag("--checkpoint-activations", flags.checkpoint,
               "Keep only each block's input, and compute the block again in backward: less memory, more time");
  app.add_flag("--offload-activations", flags.offload,
               "Like --checkpoint-activations, but keep the inputs of blocks in host memory if the model is on a GPU");
}

fsdp::CheckpointOptions checkpoint_options(const ActivationFlags& flags) { return {.offload_inputs = flags.offload}; }

std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>& part, const at::Tensor& x)> part_runner(
    const ActivationFlags& flags) {
  if (!flags.is_on()) return {};
  return [options = checkpoint_options(flags)](const auto& part, const at::Tensor& x) {
    return fsdp::activation_checkpoint(options, part, x);
  };
}

}  // namespace frame
