#pragma once
/// \file
/// Who a group is, to its rank and to the other ones.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "runtime/placement.h"
#include "runtime/rank_state.h"

namespace fsdp::runtime {

/// What the parts of a group have in common.
struct GroupIdentity {
  std::string name;
  Placement placement;
  std::shared_ptr<RankState> rank_state;
  /// What the group holds, a part of what its rank does.
  std::shared_ptr<memory::ByteAccount> account;
  GroupId id = 0;

  /// Of a collective on this group.
  Tag tag(std::string subject, uint32_t writes = 0) const {
    return {std::move(subject), {writes, "writes to the rows (optimizer steps)"}, static_cast<uint32_t>(id)};
  }
  std::string where(const std::string& operation) const { return placement.where(operation); }
};

}  // namespace fsdp::runtime
