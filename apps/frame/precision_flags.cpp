#include "frame/precision_flags.h"

#include <ATen/autocast_mode.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/options.h>

#include <CLI/CLI.hpp>

namespace frame {
namespace {

bool is_low(const PrecisionFlags& flags) { return flags.fp16 || flags.bf16 || flags.autocast; }
at::ScalarType dtype_of(const PrecisionFlags& flags) { return flags.fp16 ? at::kHalf : at::kBFloat16; }

}  // namespace

void add_precision_flags(CLI::App& app, PrecisionFlags& flags) {
  auto* fp16 = app.add_flag("--fp16", flags.fp16, "Compute and communicate in fp16, with a scale of the loss");
  app.add_flag("--bf16", flags.bf16, "Compute and gather in bf16, sum gradients in fp32")->excludes(fp16);
  app.add_flag("--autocast", flags.autocast,
               "Norms, softmax and losses in fp32 as LibTorch's autocast decides, the rest in bf16, or with --fp16 in "
               "fp16");
}

std::optional<fsdp::MixedPrecisionPolicy> precision_policy(const PrecisionFlags& flags) {
  if (!is_low(flags)) return std::nullopt;
  fsdp::MixedPrecisionPolicy policy;
  policy.param_dtype = dtype_of(flags);
  if (!flags.fp16) policy.reduce_dtype = at::kFloat;
  policy.output_dtype = at::kFloat;
  return policy;
}

fsdp::GradScaler make_scaler(const PrecisionFlags& flags) { return fsdp::GradScaler({.enabled = flags.fp16}); }

Autocast::Autocast(const PrecisionFlags& flags, c10::Device device)
    : type_(flags.autocast ? std::optional(device.type()) : std::nullopt) {
  if (!type_) return;
  at::autocast::set_autocast_dtype(*type_, dtype_of(flags));
  at::autocast::set_autocast_enabled(*type_, true);
}

Autocast::~Autocast() {
  if (type_) at::autocast::set_autocast_enabled(*type_, false);
}

}  // namespace frame
