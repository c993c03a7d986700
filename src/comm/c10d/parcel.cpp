#include "comm/c10d/parcel.h"

#include <ATen/ops/from_blob.h>

#include "comm/core/pieces.h"

#include <algorithm>
#include <utility>

namespace fsdp {

std::vector<Parcel> parcels_of(std::span<const at::Tensor> tensors, int64_t most) {
  // Up to here a copy costs less than a message.
  constexpr int64_t kSmall = int64_t{16} << 10, kTogether = int64_t{64} << 10;
  std::vector<Parcel> shared, alone;
  int64_t room = 0;
  const auto add = [&](const at::Tensor& tensor) {
    const int64_t bytes = align_slice(static_cast<int64_t>(tensor.nbytes()));
    if (bytes == 0) return;
    if (bytes > kSmall) return alone.push_back({tensor});
    if (bytes > room) {
      shared.emplace_back();
      room = kTogether;
    }
    shared.back().push_back(tensor);
    room -= bytes;
  };
  for (const auto& tensor : tensors) {
    if (static_cast<int64_t>(tensor.nbytes()) <= most) {
      add(tensor);
    } else {
      for (const auto& stretch : tensor.split(most / static_cast<int64_t>(tensor.element_size()))) add(stretch);
    }
  }
  std::ranges::move(alone, std::back_inserter(shared));
  return shared;
}

int64_t bytes_of(const Parcel& parcel) {
  int64_t end = 0;
  for (const auto& tensor : parcel) end = align_slice(end) + static_cast<int64_t>(tensor.nbytes());
  return end;
}

Parcel parcel_in(std::byte* memory, const Parcel& parcel) {
  Parcel tensors;
  int64_t begin = 0;
  for (const auto& tensor : parcel) {
    tensors.push_back(at::from_blob(memory + begin, tensor.sizes(), tensor.options()));
    begin = align_slice(begin + static_cast<int64_t>(tensor.nbytes()));
  }
  return tensors;
}

}  // namespace fsdp
