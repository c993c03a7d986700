#pragma once
/// \file
/// What the library's own code keeps with a process group, and knows of it.

#include <fsdp/process_group.h>

#include <map>
#include <memory>
#include <string>
#include <typeindex>

#include "comm/core/ranks.h"
#include "comm/core/traffic_count.h"

namespace fsdp {

struct Attachment {
  /// The one object of this type, made when it is first asked for. Thread safety: the caller serialises.
  template <class Kept>
  static std::shared_ptr<Kept> of(ProcessGroup& group) {
    auto& object = all_of(group).objects[typeid(Kept)];
    if (!object) object = std::make_shared<Kept>();
    return std::static_pointer_cast<Kept>(object);
  }
  /// A duplicate of its reductions with an order of its own, one for each `user`. The first call makes it: collective.
  /// Thread safety: the caller serialises.
  static std::shared_ptr<Communicator> order_for(ProcessGroup& group, const std::shared_ptr<ProcessGroup>& user,
                                                 const std::string& name);
  /// What its errors call its ranks, and where what its rank does is written down.
  static Ranks ranks_of(const ProcessGroup& group);
  /// What its rank exchanges, counted; null over a communicator of one's own.
  static std::shared_ptr<TrafficCount> traffic_of(const ProcessGroup& group);

 private:
  struct All {
    std::map<std::type_index, std::shared_ptr<void>> objects;
    std::map<std::weak_ptr<ProcessGroup>, std::shared_ptr<Communicator>, std::owner_less<>> orders;
  };
  static All& all_of(ProcessGroup& group) {
    if (!group.attachment_) group.attachment_ = std::make_shared<All>();
    return *std::static_pointer_cast<All>(group.attachment_);
  }
};

}  // namespace fsdp
