#include <fsdp/pipeline_schedule.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/core/check.h"

namespace fsdp {
namespace {

using Actions = std::vector<PipelineAction>;
using Kind = PipelineAction::Kind;

void require_positive(const std::string& schedule, std::initializer_list<std::pair<const char*, int>> numbers) {
  for (const auto& [name, number] : numbers)
    require(number >= 1, "[fsdp] ", schedule, ": expected a value of at least 1 for '", name, "', found ", number);
}

// Returns `forwards_first` forwards, then the other forwards with a backward after each, then the remaining backwards.
Actions alternate(const Actions& forwards, const Actions& backwards, size_t forwards_first) {
  const size_t first = std::min(forwards_first, forwards.size());
  Actions actions(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(first));
  for (size_t i = 0; i < backwards.size(); ++i) {
    if (first + i < forwards.size()) actions.push_back(forwards[first + i]);
    actions.push_back(backwards[i]);
  }
  return actions;
}

std::vector<Actions> all_forward_then_backward(const PipelineSchedule& schedule) {
  require_positive(schedule.name,
                   {{"ranks", schedule.ranks}, {"micro_batches", schedule.micro_batches}, {"slices", schedule.slices}});
  std::vector<Actions> of_ranks;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    Actions actions;
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch)
      for (int slice = 0; slice < schedule.slices; ++slice)
        actions.push_back({Kind::kForward, rank, micro_batch, slice});
    for (size_t i = actions.size(); i-- > 0;) {
      actions.push_back(actions[i]);
      actions.back().kind = Kind::kBackward;
    }
    of_ranks.push_back(std::move(actions));
  }
  return of_ranks;
}

}  // namespace

std::string PipelineAction::name() const {
  return str_cat(kind == Kind::kForward ? 'F' : 'B', micro_batch, '.', stage, slice > 0 ? str_cat(':', slice) : "");
}

PipelineSchedule gpipe_schedule(int ranks, int micro_batches) {
  PipelineSchedule schedule{"GPipe", ranks, 1, micro_batches};
  schedule.actions = all_forward_then_backward(schedule);
  return schedule;
}

PipelineSchedule terapipe_schedule(int ranks, int micro_batches, std::vector<int64_t> slice_lengths) {
  PipelineSchedule schedule{"TeraPipe", ranks, 1, micro_batches, static_cast<int>(slice_lengths.size())};
  require(std::ranges::all_of(slice_lengths, [](int64_t length) { return length >= 1; }), "[fsdp] ", schedule.name,
          ": expected slices of at least 1 token, found lengths ", str_join(", ", slice_lengths));
  schedule.actions = all_forward_then_backward(schedule);
  schedule.slice_lengths = std::move(slice_lengths);
  return schedule;
}

PipelineSchedule one_forward_one_backward_schedule(int ranks, int micro_batches, int chunks) {
  PipelineSchedule schedule{chunks > 1 ? "interleaved 1F1B" : "1F1B", ranks, chunks, micro_batches};
  require_positive(schedule.name, {{"ranks", ranks}, {"micro_batches", micro_batches}, {"chunks", chunks}});
  require(chunks == 1 || micro_batches % ranks == 0, "[fsdp] ", schedule.name,
          ": expected a number of micro-batches that is a multiple of the ", ranks, " ranks, found ", micro_batches,
          ". Choose a different number of micro-batches, or one chunk for each rank");
  // With several chunks, micro-batches are processed in rounds of `ranks` micro-batches. When a rank has run one chunk
  // on all micro-batches of a round, the first of them has passed all other ranks and is ready for the next chunk.
  const int in_round = chunks == 1 ? micro_batches : ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    Actions forwards, backwards;
    for (int first = 0; first < micro_batches; first += in_round)
      for (int chunk = 0; chunk < chunks; ++chunk)
        for (int micro_batch = first; micro_batch < first + in_round; ++micro_batch) {
          forwards.push_back({Kind::kForward, chunk * ranks + rank, micro_batch});
          backwards.push_back({Kind::kBackward, (chunks - 1 - chunk) * ranks + rank, micro_batch});
        }
    const int after = ranks - 1 - rank;
    const int forwards_first = chunks == 1 ? after : 2 * after + (chunks - 1) * ranks;
    schedule.actions.push_back(alternate(forwards, backwards, static_cast<size_t>(forwards_first)));
  }
  return schedule;
}

std::vector<PipelineAction> inputs_of(const PipelineSchedule& schedule, const PipelineAction& action) {
  std::vector<PipelineAction> inputs;
  auto [kind, stage, micro_batch, slice] = action;
  if (kind == Kind::kForward) {
    if (stage > 0) inputs.push_back({kind, stage - 1, micro_batch, slice});
    if (slice > 0) inputs.push_back({kind, stage, micro_batch, slice - 1});  // whose keys and values this one needs
  } else {
    inputs.push_back({Kind::kForward, stage, micro_batch, slice});
    if (stage + 1 < schedule.stages()) inputs.push_back({kind, stage + 1, micro_batch, slice});
    if (slice + 1 < schedule.slices) inputs.push_back({kind, stage, micro_batch, slice + 1});
  }
  return inputs;
}

}  // namespace fsdp
