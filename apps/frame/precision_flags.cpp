#include "frame/precision_flags.h"

#include <fsdp/trainer_options.h>

#include <CLI/CLI.hpp>

namespace frame {

void add_precision_flags(CLI::App& app, PrecisionFlags& flags) {
  auto* fp16 = app.add_flag("--fp16", flags.fp16, "Compute and communicate in fp16, with loss scaling");
  app.add_flag("--bf16", flags.bf16, "Compute and gather in bf16, sum gradients in fp32")->excludes(fp16);
  app.add_flag("--autocast", flags.autocast,
               "Compute norms, softmax and losses in fp32, as LibTorch's autocast decides, and the rest in bf16, or "
               "with --fp16 in fp16");
}

void set_precision(fsdp::TrainerOptions& options, const PrecisionFlags& flags) {
  if (flags.fp16) options.precision = fsdp::Precision::kFloat16;
  if (flags.bf16) options.precision = fsdp::Precision::kBFloat16;
  options.autocast = flags.autocast;
}

}  // namespace frame
