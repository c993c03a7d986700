#pragma once
/// \file
/// Objects that the library's own code keeps with a process group, and internals of the group that this code needs.

#include <fsdp/process_group.h>

#include <map>
#include <memory>
#include <string>
#include <typeindex>

#include "comm/core/ranks.h"
#include "comm/core/traffic_count.h"

namespace fsdp {

struct Attachment {
  /// Returns the group's only object of type Kept, which the first call makes. The caller must serialise the calls.
  template <class Kept>
  static std::shared_ptr<Kept> of(ProcessGroup& group) {
    auto& object = all_of(group).objects[typeid(Kept)];
    if (!object) object = std::make_shared<Kept>();
    return std::static_pointer_cast<Kept>(object);
  }
  /// Returns a duplicate of the group's reductions(), which has its own queue. Each `user` gets its own duplicate. The
  /// first call for a user makes it and is collective. The caller must serialise the calls.
  static std::shared_ptr<Communicator> queue_for(ProcessGroup& group, const std::shared_ptr<ProcessGroup>& user,
                                                 const std::string& name);
  /// Returns the names of the group's ranks for error messages, and this rank's timeline.
  static Ranks ranks_of(const ProcessGroup& group);
  /// Returns the counters of the rank's traffic; null for a user's own communicator.
  static std::shared_ptr<TrafficCount> traffic_of(const ProcessGroup& group);

 private:
  struct All {
    std::map<std::type_index, std::shared_ptr<void>> objects;
    std::map<std::weak_ptr<ProcessGroup>, std::shared_ptr<Communicator>, std::owner_less<>> queues;
  };
  static All& all_of(ProcessGroup& group) {
    if (!group.attachment_) group.attachment_ = std::make_shared<All>();
    return *std::static_pointer_cast<All>(group.attachment_);
  }
};

}  // namespace fsdp
