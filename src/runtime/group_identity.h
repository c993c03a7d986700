#pragma once
/// \file
/// Who a group is, to its rank and to the other ones.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "comm/core/call_tag.h"
#include "runtime/pins.h"
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
  std::shared_ptr<Pins> pins = std::make_shared<Pins>();

  /// Of a collective on this group.
  Tag tag(std::string subject, uint32_t writes = 0) const {
    return {std::move(subject), {writes, "writes to the rows (optimizer steps)"}, static_cast<uint32_t>(id)};
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
