#include "runtime/turns.h"

#include <torch/csrc/autograd/variable.h>

#include "comm/core/check.h"

namespace fsdp::runtime {

bool Turns::begin_scope() {
  ++scopes_;
  backwards_after_writes_ = 0;
  is_written_by_all_ = has_to_meet_ = false;
  reading_->begin(epoch());
  return meets();
}

void Turns::cancel_scope() {
  --scopes_;
  reading_->begin(epoch());
}

// A peer that has yet to make a write that this rank made before does not wait for it. What is read again has that
// write, where every rank counts it.
bool Turns::begin_backward() {
  const bool follows_a_write = std::exchange(is_written_by_all_, false);
  if (follows_a_write) ++backwards_after_writes_;
  reading_->begin(epoch());
  return follows_a_write && counts_writes_;
}

void Turns::end_scopes(const std::vector<ParamSlot>& slots, bool is_hidden) {
  if (!reading_->is_shared() || openings > 0) return;
  for (const auto& slot : slots)
    if (const auto tensor = slot.tensor(); tensor.defined())
      if (const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor))
        reading_->watch(accumulator);
  reading_->leave(is_hidden);
}

bool Turns::wait_to_write() {
  if (!reading_->is_shared()) return false;
  if (reading_->is_open())
    require(
        false, group_.where("write"), "rows of '", group_.name,
        "' are to be written while another thread has a forward scope or a backward open. Threads that train one model "
        "take turns: write when the other one's backward has ended");
  const bool read = reading_->end();
  const uint64_t last_epoch = epoch();
  if (!read && written_in_epoch_ == last_epoch) return false;
  const Span waiting(group_.rank_state->timeline, Track::kCompute, "wait to write", group_.name);
  group_.placement.pass_on_failure_of("write", [&] {
    for (auto* rows : reading_->buffers()) group_.rank_state->wait_to_write(*rows, last_epoch);
  });
  written_in_epoch_ = last_epoch;
  return true;
}

void Turns::note_write(WriteKind kind, std::optional<size_t> slot) {
  while (wait_to_write()) {
  }
  group_.rank_state->host_copies().wait();  // some may be of these rows
  is_written_by_all_ |= kind == WriteKind::kEveryRank;
  ++version_;
  if (kind == WriteKind::kEveryRank && counts_writes_) writes_.note(slot);
}

}  // namespace fsdp::runtime
