#include "memory/stream_uses.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

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

void HandedOn::put(at::Tensor tensor) {
  tensor_ = std::move(tensor);
  if (!tensor_.is_cpu()) stream_ = current_stream(tensor_.device());
}

at::Tensor HandedOn::take() {
  auto tensor = std::exchange(tensor_, at::Tensor());
  const auto from = std::exchange(stream_, std::nullopt);
  if (!from) return tensor;
  const auto to = current_stream(tensor.device());
  if (to == *from) return tensor;
  c10::Event made(from->device_type());
  made.record(*from);
  made.block(to);
  c10::impl::VirtualGuardImpl(to.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), to);
  return tensor;
}

}  // namespace fsdp::memory
