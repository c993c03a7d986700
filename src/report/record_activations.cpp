#include <fsdp/memory_report.h>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "memory/allocation_watch.h"
#include "runtime/param_group.h"

namespace fsdp {

struct RecordActivations::State {
  explicit State(runtime::RankState& of_rank) : rank(of_rank), watch(of_rank.shared_account()) {}

  runtime::RankState& rank;
  memory::AllocationWatch watch;
};

RecordActivations::RecordActivations(const Group& model) {
  const auto& own = *param_groups(model).front();
  state_ = std::make_unique<State>(own.rank_state());
}

RecordActivations::~RecordActivations() = default;

}  // namespace fsdp
