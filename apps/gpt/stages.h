#pragma once
/// \file
/// The model as stages on the ranks of a pipeline's axis.

#include <fsdp/pipeline.h>

#include <iosfwd>

#include "arguments.h"
#include "axes.h"
#include "model.h"
#include "text/text_batches.h"

namespace gpt {

/// The blocks of this rank's stages, as --pipe, --schedule and --chunks say; empty without --pipe.
models::OwnBlocks own_blocks(const Axes& axes, const Arguments& arguments);

/// Everything is collective over all ranks.
class Stages {
 public:
  /// Of a model with the own blocks. With `--slices auto` the ranks measure slices, and rank 0 prints to `out` what it
  /// expects of them.
  Stages(const Model& model, const Axes& axes, int64_t vocabulary, const Arguments& arguments, std::ostream& out);

  /// Forward and backward of the joined batch of this rank's share, from `weight` times its mean loss, which is
  /// returned.
  at::Tensor step(const text::TextBatch& batch, double weight);
  /// The mean loss on the ranks of the last stage, and an undefined tensor on the others.
  at::Tensor loss(const text::TextBatch& batch);
  /// What the model expects behind `context`, [1, tokens]: logits, [vocabulary], on every rank.
  at::Tensor next_token(const at::Tensor& context);
  const fsdp::Pipeline& pipeline() const { return pipeline_; }

 private:
  at::Tensor features(const at::Tensor& ids);

  Model model_;
  const Axes& axes_;
  const Arguments& arguments_;
  int64_t vocabulary_;
  fsdp::Pipeline::Loss loss_;
  fsdp::Pipeline pipeline_;
};

}  // namespace gpt
