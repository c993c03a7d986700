#include "memory/handed_on.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp::memory {

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
