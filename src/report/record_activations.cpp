#include <fsdp/memory_report.h>

#include <unordered_map>

#include "api/group_view.h"
#include "memory/allocation_watch.h"
#include "runtime/param_group.h"

namespace fsdp {

struct RecordActivations::State {
  using Account = std::shared_ptr<memory::ByteAccount>;

  explicit State(const std::shared_ptr<runtime::RankState>& of_rank)
      : rank(of_rank), nobodys(std::make_shared<memory::ByteAccount>(rank->shared_account())) {
    const MutexLock lock(rank->mutex);
    for (const auto* group : rank->groups()) accounts[group->id()] = group->account();
  }
  // Of the group whose parameters were read last since a scope or a backward began.
  const Account& account() const {
    const auto read_last = accounts.find(rank->reads.current);
    return read_last == accounts.end() ? nobodys : read_last->second;
  }

  const std::shared_ptr<runtime::RankState> rank;
  const Account nobodys;
  std::unordered_map<runtime::GroupId, Account> accounts;  // of groups that there were when it began
  memory::AllocationWatch watch{[this]() -> const Account& { return account(); }};
};

RecordActivations::RecordActivations(const Group& model)
    : state_(std::make_unique<State>(param_groups(model).front()->shared_rank_state())) {}

RecordActivations::~RecordActivations() = default;

}  // namespace fsdp
