#pragma once
/// \file
/// Who a group is, to its rank and to the other ones.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "comm/core/call_tag.h"
#include "comm/core/fault_point.h"
#include "comm/core/rank_lock.h"
#include "runtime/placement.h"
#include "runtime/rank_state.h"

namespace fsdp::runtime {

/// Counts the operators that compute with a group's unsharded parameters at the moment, on any thread. What they read
/// stays in memory, and their parameters stay whole, until they end.
class Pins {
 public:
  /// Called under the rank's lock when an operator of the calling thread begins.
  void add() {
    ++count_;
    ++own_;
  }
  /// Called without the lock when the operator ends.
  void remove() {
    --own_;
    if (--count_ == 0) count_.notify_all();
  }
  bool are_there() const { return count_ > 0; }
  /// Lets the rank's lock go until there are none. Returns whether it did, so that others may have done something
  /// meanwhile. A thread that is inside of an operator, which its own wait would keep from ending, waits for none.
  bool wait_until_gone(RankLock& lock) {
    if (!are_there() || own_ > 0) return false;
    fault_point("waiting for operators");
    const RankLock::LetGo others_go_on(lock);
    for (int count = count_; count > 0; count = count_) count_.wait(count);
    return true;
  }

 private:
  static inline constinit thread_local int own_ = 0;  // of this thread, of all groups
  std::atomic<int> count_ = 0;
};

/// What ranks count of a group, for messages.
constexpr std::string_view kWritesToRows = "writes to the rows (optimizer steps)";

/// What the parts of a group have in common.
struct GroupIdentity {
  std::string name;
  Placement placement;
  std::shared_ptr<RankState> rank_state;
  /// What the group holds, a part of what its rank does.
  std::shared_ptr<memory::ByteAccount> account;
  GroupId id = 0;
  std::shared_ptr<Pins> pins = std::make_shared<Pins>();

  /// Of a collective on this group.
  Tag tag(std::string subject, uint32_t writes = 0) const {
    return {std::move(subject), {writes, kWritesToRows}, static_cast<uint32_t>(id)};
  }
  /// The same; messages say that it is of a call of the user's, if there is one.
  Tag tag_of(const std::string& call, std::string subject, uint32_t writes = 0) const {
    auto named = tag(std::move(subject), writes);
    if (!call.empty()) named.shown = call_tag(call, name).shown;
    return named;
  }
  std::string where(const std::string& operation) const { return placement.where(operation); }
};

}  // namespace fsdp::runtime
