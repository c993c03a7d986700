#pragma once
/// \file
/// Which groups are needed next, and which may be freed. Integers only; the runtime carries the decisions out.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fsdp::runtime {

using GroupId = uint64_t;

/// The order in which groups were read in one pass predicts the next pass.
///
/// A group that is read again after another one appears again, so blocks that are used several times are predicted too.
class ReadOrder {
 public:
  /// Begins a pass: what the last one saw becomes the prediction.
  void start();
  /// Notes that `group` is read and returns the group that followed it in the last pass, if it is known.
  std::optional<GroupId> note(GroupId group);

 private:
  std::vector<GroupId> predicted_, seen_;
  size_t cursor_ = 0;  // in predicted_: where the next group is looked for
};

/// A group whose whole parameters are in memory, as far as freeing is concerned.
struct Resident {
  GroupId group = 0;
  /// Not to be freed: told to stay, part of the operator, an ancestor or a descendant of one, or needed next.
  bool is_protected = false;
};

/// The groups to free, oldest first, until at most `left` unprotected ones stay. `residents`: least recently read
/// first.
std::vector<GroupId> groups_to_free(std::span<const Resident> residents, size_t left);

}  // namespace fsdp::runtime
