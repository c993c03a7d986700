#pragma once
/// \file
/// What the layers above keep with a process group.

#include <fsdp/process_group.h>

#include <memory>

namespace fsdp {

struct Attachment {
  /// The one object of this kind, made when it is first asked for. A process group has one kind. Thread safety: the
  /// caller serialises.
  template <class Kept>
  static std::shared_ptr<Kept> of(ProcessGroup& group) {
    if (!group.attachment_) group.attachment_ = std::make_shared<Kept>();
    return std::static_pointer_cast<Kept>(group.attachment_);
  }
};

}  // namespace fsdp
