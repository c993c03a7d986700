#pragma once
/// \file
/// Runs the model as the stages of a pipeline.

#include <fsdp/pipeline.h>

#include <iosfwd>

#include "arguments.h"
#include "axes.h"
#include "model.h"
#include "text/text_batches.h"

namespace gpt {

/// Returns the blocks of this rank's stages, which depend on --pipe, --schedule and --chunks; empty without --pipe.
models::OwnBlocks own_blocks(const Axes& axes, const Arguments& arguments);

/// The stages that this rank runs. All methods but `pipeline` are collective over all ranks.
class Stages {
 public:
  /// `model` has the blocks that own_blocks returns. With `--slices auto` the ranks measure which slices are best, and
  /// rank 0 prints the times that it expects to `out`.
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
