#pragma once
/// \file
/// What the library's own code keeps with a process group, and knows of it.

#include <fsdp/process_group.h>

#include <memory>

#include "comm/core/ranks.h"

namespace fsdp {

struct Attachment {
  /// The one object of this kind, made when it is first asked for. A process group has one kind. Thread safety: the
  /// caller serialises.
  template <class Kept>
  static std::shared_ptr<Kept> of(ProcessGroup& group) {
    if (!group.attachment_) group.attachment_ = std::make_shared<Kept>();
    return std::static_pointer_cast<Kept>(group.attachment_);
  }
  /// What its errors call its ranks.
  static Ranks ranks_of(const ProcessGroup& group);
};

}  // namespace fsdp
