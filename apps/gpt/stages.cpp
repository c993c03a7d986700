#include "stages.h"

#include <fsdp/collectives.h>
#include <fsdp/scopes.h>
#include <torch/types.h>

#include <algorithm>
#include <ostream>
#include <utility>
#include <vector>

#include "models/stages.h"

namespace gpt {
namespace {

// Splits `tokens` tokens into `count` slices whose lengths differ by at most one.
std::vector<int64_t> equal_slices(int64_t tokens, int64_t count) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(tokens * (i + 1) / count - tokens * i / count);
  return lengths;
}

fsdp::PipelineSchedule schedule_of(const Arguments& arguments) {
  const auto& [ranks, micro_batches, name, chunks] = arguments.pipeline;
  const bool has_slices = !arguments.slices.empty() && arguments.slices != "auto";
  if (has_slices)
    return fsdp::terapipe_schedule(ranks, micro_batches, equal_slices(arguments.seq, std::stoll(arguments.slices)));
  return frame::make_schedule(arguments.slices.empty() ? name : "gpipe", ranks, micro_batches, chunks);
}

// Returns the tokens and targets of a batch on `device`. With a sequence axis it returns only this rank's part of them.
std::pair<at::Tensor, at::Tensor> part_of(const text::TextBatch& batch, const auto& sequence, at::Device device) {
  const auto inputs = batch.inputs.to(device), targets = batch.targets.to(device);
  if (!sequence) return {inputs, targets};
  return {sequence->shard(inputs, 1), sequence->shard(targets, 1, -100)};
}

}  // namespace

models::OwnBlocks own_blocks(const Axes& axes, const Arguments& arguments) {
  if (!axes.pipe) return {};
  return models::blocks_of_rank(arguments.layers, schedule_of(arguments), axes.pipe->rank());
}

Stages::Stages(const Model& model, const Axes& axes, int64_t vocabulary, const Arguments& arguments, std::ostream& out)
    : model_(model),
      axes_(axes),
      arguments_(arguments),
      vocabulary_(vocabulary),
      loss_(models::loss_of(model.module(), model)),
      pipeline_(models::stages_of(model.module(), model, own_blocks(axes, arguments)), schedule_of(arguments),
                axes.pipe) {
  if (arguments.slices != "auto") return;
  const int64_t sequences = arguments.batch / arguments.pipeline.micro_batches;
  const auto device = model_.parameters().front().device();
  const auto tuning =
      pipeline_.tune(torch::zeros({sequences, arguments.seq}, torch::TensorOptions(torch::kInt64).device(device)),
                     {.all_ranks = fsdp::default_process_group()});
  if (fsdp::rank() == 0) out << tuning << std::endl;
  if (tuning.plan.lengths.size() > 1)
    pipeline_.set_schedule(
        fsdp::terapipe_schedule(arguments.pipeline.ranks, arguments.pipeline.micro_batches, tuning.plan.lengths));
}

at::Tensor Stages::step(const text::TextBatch& batch, double weight) {
  const auto scope = axes_.open_sequence();
  const auto [inputs, targets] = part_of(batch, scope, model_.parameters().front().device());
  const auto weighted = [&](const at::Tensor& output, const at::Tensor& target) {
    return weight * loss_(output, target);
  };
  return pipeline_.step(inputs, targets, weighted) / weight;
}

at::Tensor Stages::loss(const text::TextBatch& batch) {
  const auto scope = axes_.open_sequence();
  const auto [inputs, targets] = part_of(batch, scope, model_.parameters().front().device());
  const auto given = features(inputs);
  return given.defined() ? loss_(given, targets) : given;
}

at::Tensor Stages::next_token(const at::Tensor& context) {
  const auto device = model_.parameters().front().device();
  const auto given = features(context.to(device));
  auto logits = torch::empty({vocabulary_}, torch::TensorOptions(torch::kFloat).device(device));
  if (given.defined()) {
    const fsdp::ForwardScope scope(model_);
    logits.copy_(model_->head(given.select(1, -1)).squeeze(0));
  }
  const auto& schedule = pipeline_.schedule();
  return fsdp::broadcast(logits, schedule.rank_of(schedule.stages() - 1), axes_.pipe);
}

// Returns the output of the last stage. The schedule needs at least one row for each micro-batch, and with slices a
// sequence of `seq` tokens, so this function pads `ids` at the end. The model is causal, so the padding does not change
// the outputs of the tokens before it.
at::Tensor Stages::features(const at::Tensor& ids) {
  const auto& schedule = pipeline_.schedule();
  const int64_t rows = ids.size(0), tokens = ids.size(1);
  const int64_t more_rows = std::max<int64_t>(schedule.micro_batches - rows, 0);
  const int64_t more_tokens = schedule.slices > 1 ? arguments_.seq - tokens : 0;
  const auto given = pipeline_.forward(torch::constant_pad_nd(ids, {0, more_tokens, 0, more_rows}));
  return given.defined() ? given.narrow(0, 0, rows).narrow(1, 0, tokens) : given;
}

}  // namespace gpt
