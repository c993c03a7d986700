#include "memory/stream_uses.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

namespace fsdp::memory {
namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

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
