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

  /// Runs forward and backward on this rank's share of the batch, which is the same on all ranks of the pipeline.
  /// Backward starts from `weight` times the mean loss. Returns the mean loss.
  at::Tensor step(const text::TextBatch& batch, double weight);
  /// Returns the mean loss on the ranks of the last stage, and an undefined tensor on other ranks.
  at::Tensor loss(const text::TextBatch& batch);
  /// Returns on every rank the logits, of shape [vocabulary], of the token that follows `context`, of shape [1,
  /// tokens].
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
