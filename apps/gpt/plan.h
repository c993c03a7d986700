#pragma once
/// \file
/// What the arguments and the length of the text make of a training. Pure but for the rank that asks.

#include "arguments.h"
#include "batches.h"
#include "text.h"

namespace gpt {

class Plan {
 public:
  /// For this rank. Refers to both. Throws std::invalid_argument if a part of the text is too short.
  Plan(const Text& text, const Arguments& arguments);

  int64_t steps() const { return steps_; }
  int64_t tokens_per_step() const { return shares_ * shape_.sequences * shape_.seq; }
  double learning_rate(int64_t step) const;

  /// The joined batch of a step is dealt to micro-batches first, then to ranks, so more ranks with fewer micro-batches
  /// train as fewer ranks with more.
  Batch batch(int64_t step, int64_t micro_batch) const;
  std::vector<Batch> validation() const;

  /// The epoch that ends when `done` steps are done; 0 if none does.
  int64_t ended_epoch(int64_t done) const;
  bool validates_after(int64_t done) const;

 private:
  const Text& text_;
  const Arguments& arguments_;
  int64_t rank_, world_size_, shares_;
  BatchShape shape_;
  int64_t steps_of_epoch_ = 0;  // 0: there are no epochs
  int64_t steps_;
};

}  // namespace gpt
