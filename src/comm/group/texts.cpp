#include "comm/group/texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstring>
#include <string_view>

namespace fsdp {
namespace {

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string_view text_in(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

// Where each rank's text begins among all of them, and where the last one ends.
std::vector<int64_t> gather_offsets(const ProcessGroup& group, const std::string& own, const Tag& tag) {
  const int ranks = group.world_size();
  const auto size = at::full({1}, static_cast<int64_t>(own.size()), at::kLong), sizes = at::empty({ranks}, at::kLong);
  std::vector<int64_t> ones, offsets{0};
  for (int rank = 0; rank <= ranks; ++rank) ones.push_back(rank);
  group.communicator().all_gather(sizes, size, ones, tag)->wait();
  for (int rank = 0; rank < ranks; ++rank) offsets.push_back(offsets.back() + sizes.const_data_ptr<int64_t>()[rank]);
  return offsets;
}

}  // namespace

std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& own, const Tag& tag) {
  const auto offsets = gather_offsets(group, own, tag);
  const auto all = at::empty({offsets.back()}, at::kByte);
  group.communicator().all_gather(all, bytes_of(own), offsets, tag)->wait();
  std::vector<std::string> texts;
  for (size_t rank = 0; rank + 1 < offsets.size(); ++rank)
    texts.emplace_back(text_in(all.narrow(0, offsets[rank], offsets[rank + 1] - offsets[rank])));
  return texts;
}

void collect_texts(const ProcessGroup& group, const std::string& own, int root, const Tag& tag,
                   const std::function<void(int rank, const std::string& text)>& take) {
  const auto offsets = gather_offsets(group, own, tag);
  if (group.rank() != root) return group.communicator().send(bytes_of(own), root, tag)->wait();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank == root) {
      take(rank, own);
      continue;
    }
    const auto* begin = &offsets[static_cast<size_t>(rank)];
    const auto bytes = at::empty({begin[1] - begin[0]}, at::kByte);
    group.communicator().recv(bytes, rank, tag)->wait();
    take(rank, std::string(text_in(bytes)));
  }
}

}  // namespace fsdp
