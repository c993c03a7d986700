#include "plan.h"

#include <fsdp/process_group.h>

#include "train/schedule.h"

namespace gpt {

Plan::Plan(const Text& text, const Arguments& arguments)
    : text_(text),
      arguments_(arguments),
      rank_(fsdp::rank()),
      world_size_(fsdp::world_size()),
      shares_(world_size_ * arguments.update_freq),
      shape_{arguments.batch, arguments.seq},
      steps_(arguments.steps) {
  if (arguments.epochs > 0) {
    steps_of_epoch_ = steps_of_epoch(text.training, shape_, shares_);
    steps_ = arguments.epochs * steps_of_epoch_;
  }
  check_lengths(text.training, text.validation, shape_, world_size_);
}

double Plan::learning_rate(int64_t step) const {
  return fsdp::train::cosine_learning_rate({.highest = arguments_.lr, .warmup = arguments_.warmup, .steps = steps_},
                                           step);
}

Batch Plan::batch(int64_t step, int64_t micro_batch) const {
  const Share share{micro_batch * world_size_ + rank_, shares_};
  if (steps_of_epoch_ == 0) return training_batch(text_.training, shape_, arguments_.seed, step, share);
  return epoch_batch(text_.training, shape_, arguments_.seed, step / steps_of_epoch_, step % steps_of_epoch_, share);
}

std::vector<Batch> Plan::validation() const {
  return validation_batches(text_.validation, shape_, {rank_, world_size_});
}

int64_t Plan::ended_epoch(int64_t done) const {
  return steps_of_epoch_ > 0 && done % steps_of_epoch_ == 0 ? done / steps_of_epoch_ : 0;
}

bool Plan::validates_after(int64_t done) const {
  return done == steps_ || ended_epoch(done) > 0 || (arguments_.eval_every > 0 && done % arguments_.eval_every == 0);
}

}  // namespace gpt
