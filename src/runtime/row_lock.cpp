#include "runtime/row_lock.h"

#include <torch/csrc/autograd/variable.h>

#include "comm/core/check.h"

namespace fsdp::runtime {

void RowLock::begin_read() {
  if (buffers_.empty()) return;
  is_open_ = true;
  if (reads_ && epoch_read_ == epoch()) return;
  reads_ = true;
  epoch_read_ = epoch();
  for (auto* buffer : buffers_) buffer->begin_read(epoch_read_);
}

bool RowLock::begin_scope() {
  ++scopes_;
  backwards_after_writes_ = 0;
  is_written_by_all_ = has_to_meet_ = false;
  writes_seen_ = group_.rank_state->writes_by_all;
  begin_read();
  return meets();
}

void RowLock::cancel_scope() {
  --scopes_;
  begin_read();
}

// A peer that has yet to make a write that this rank made before does not wait for it. What is read again has that
// write, where every rank counts it.
bool RowLock::begin_backward() {
  const bool follows_a_write = std::exchange(is_written_by_all_, false);
  const auto writes = group_.rank_state->writes_by_all;
  const bool reads_anew = std::exchange(writes_seen_, writes) != writes && meets();
  if (follows_a_write || reads_anew) ++backwards_after_writes_;
  begin_read();
  return (follows_a_write && counts_writes_) || reads_anew;
}

void RowLock::end_scopes(const std::vector<ParamSlot>& slots, bool has_recorded) {
  if (buffers_.empty() || openings > 0) return;
  is_open_ = false;
  // A rank without rows need not write them. So nobody reads after the close, and each backward meets the ranks again.
  if (!counts_writes_) {
    writes_seen_ = UINT64_MAX;
    return end_read();
  }
  // Custom Functions compute while nothing is recorded; their nodes lead to the accumulators of what they took.
  const auto has_accumulator = [](const ParamSlot& slot) {
    const auto tensor = slot.tensor();
    return tensor.defined() && torch::autograd::impl::try_get_grad_accumulator(tensor);
  };
  has_graph_ = has_graph_ || has_recorded || std::ranges::any_of(slots, has_accumulator);
  if (!has_graph_) return end_read();
  group_.rank_state->readers_at_rest[group_.id] = this;
}

void RowLock::end_reads_at_rest() {
  for (auto& [id, lock] : std::exchange(group_.rank_state->readers_at_rest, {}))
    if (!lock->is_open_) lock->end_read();
}

void RowLock::end_read() {
  has_graph_ = false;
  if (!std::exchange(reads_, false)) return;
  written_in_epoch_ = UINT64_MAX;
  for (auto* buffer : buffers_) buffer->end_read();
}

void RowLock::begin_write() {
  if (is_open_ && reads_)
    require(
        false, group_.where("write"), "rows of '", group_.name,
        "' are to be written while another thread has a forward scope or a backward open. Threads that train one model "
        "take turns: write when the other one's backward has ended");
  end_read();
}

bool RowLock::wait_to_write() {
  if (buffers_.empty()) return false;
  begin_write();
  const uint64_t last_epoch = epoch();
  if (written_in_epoch_ == last_epoch) return false;
  const Span waiting(group_.rank_state->timeline, Track::kCompute, "wait to write", group_.name);
  group_.placement.pass_on_failure_of("write", [&] {
    for (auto* rows : buffers_) group_.rank_state->wait_to_write(*rows, last_epoch);
  });
  written_in_epoch_ = last_epoch;
  return true;
}

void RowLock::note_write(WriteKind kind, std::optional<size_t> slot) {
  const bool is_by_all = kind == WriteKind::kEveryRank && counts_writes_;
  if (is_by_all) end_reads_at_rest();
  while (wait_to_write()) {
  }
  group_.rank_state->host_copies().wait();  // some may be of these rows
  is_written_by_all_ |= kind == WriteKind::kEveryRank;
  ++version_;
  if (!is_by_all) return;
  writes_.note(slot);
  ++group_.rank_state->writes_by_all;
}

}  // namespace fsdp::runtime
