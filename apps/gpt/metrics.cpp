#include "metrics.h"

#include <fsdp/collectives.h>
#include <fsdp/parameters.h>
#include <fsdp/scalar_log.h>
#include <fsdp/tensor_cut.h>

#include <cmath>
#include <string>

namespace gpt {
namespace {

c10::ScalarType dtype_of_products(const frame::PrecisionFlags& flags) {
  if (flags.fp16) return c10::kHalf;
  return flags.bf16 || flags.autocast ? c10::kBFloat16 : c10::kFloat;
}

// Returns the number of elements of the whole model, including the parts of blocks and the stages of other ranks.
int64_t numel_of_all(const Model& model, const Axes& axes, const Arguments& arguments) {
  int64_t numel = model.stats().parameter_numel;
  for (const auto& module : model->modules()) {
    const auto* layer = dynamic_cast<const fsdp::TensorParallelLayer*>(module.get());
    if (layer == nullptr) continue;
    for (const auto& parameter : module->named_parameters(/*recurse=*/false))
      if (layer->cut_of(parameter.key()))
        numel += (arguments.tensor_ranks - 1) * c10::multiply_integers(fsdp::global_sizes(parameter.value()));
  }
  if (!axes.pipe) return numel;
  return std::llround(fsdp::mean(static_cast<double>(numel), axes.pipe) * axes.pipe->world_size());
}

frame::FlopsModel flops_of(const Model& model, const Axes& axes, c10::Device device, int64_t vocabulary,
                           const Arguments& arguments) {
  const int64_t places = arguments.architecture == Architecture::kGpt ? arguments.seq : 0;
  const int64_t multiplied = numel_of_all(model, axes, arguments) - (vocabulary + places) * arguments.dim;
  const double peak = arguments.observing.peak_flops > 0
                          ? arguments.observing.peak_flops
                          : frame::measured_peak_flops(device, dtype_of_products(arguments.precision));
  return {
      .per_token = frame::FlopsModel::of_transformer_token(multiplied, arguments.layers, arguments.dim, arguments.seq),
      .peak_of_rank = peak};
}

bool is_asked_for(const frame::ObservingFlags& flags) { return !flags.metrics.empty() || !flags.tensorboard.empty(); }

}  // namespace

frame::StepMetrics step_metrics(const Model& model, const Axes& axes, c10::Device device, int64_t vocabulary,
                                const text::TextBatches& batches, int64_t first, std::string_view unit,
                                const Arguments& arguments) {
  const auto flops =
      is_asked_for(arguments.observing) ? flops_of(model, axes, device, vocabulary, arguments) : frame::FlopsModel();
  return {frame::open_scalar_log(arguments.observing, /*appends=*/first > 0), batches.tokens_per_step(),
          std::string(unit) + "s", flops};
}

}  // namespace gpt
