#include "memory/stream_uses.h"

#include <c10/core/Event.h>

#include <algorithm>
#include <exception>

#include "comm/core/current_stream.h"

namespace fsdp::memory {

StreamUses::StreamUses(c10::Device device) : device_(device) {
  if (!device.is_cpu()) own_ = current_stream(device);
}

StreamUses::~StreamUses() {
  try {
    for (const auto& user : users_) {
      if (user == *own_) continue;
      c10::Event used(device_.type());
      used.record(user);
      used.block(*own_);
    }
  } catch (const std::exception&) {
    // A device that failed orders nothing any more.
  }
}

bool StreamUses::note_current() {
  if (!own_) return false;
  const auto stream = current_stream(device_);
  if (std::ranges::find(users_, stream) != users_.end()) return false;
  users_.push_back(stream);
  return true;
}

}  // namespace fsdp::memory
