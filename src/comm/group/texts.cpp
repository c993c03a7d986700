#include "comm/group/texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <string_view>

namespace fsdp {
namespace {

// Returns the bytes of a text, which must outlive the tensor.
at::Tensor bytes_of(const std::string& text) {
  return at::from_blob(const_cast<char*>(text.data()), {std::ssize(text)}, at::kByte);
}

std::string_view text_in(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

// Returns the length of each rank's text.
std::vector<int64_t> gather_sizes(const ProcessGroup& group, const std::string& own, const Tag& tag) {
  const auto size = at::full({1}, static_cast<int64_t>(own.size()), at::kLong);
  const auto sizes = at::empty({group.world_size()}, at::kLong);
  group.communicator().all_gather(sizes, size, tag)->wait();
  return {sizes.const_data_ptr<int64_t>(), sizes.const_data_ptr<int64_t>() + sizes.numel()};
}

}  // namespace

std::vector<std::string> gather_texts(const ProcessGroup& group, const std::string& own, const Tag& tag) {
  const auto sizes = gather_sizes(group, own, tag);
  const int64_t longest = std::ranges::max(sizes);
  std::string padded = own;
  padded.resize(static_cast<size_t>(longest));
  const auto all = at::empty({longest * group.world_size()}, at::kByte);
  group.communicator().all_gather(all, bytes_of(padded), tag)->wait();
  std::vector<std::string> texts;
  for (const int64_t size : sizes) texts.emplace_back(text_in(all.narrow(0, std::ssize(texts) * longest, size)));
  return texts;
}

void collect_texts(const ProcessGroup& group, const std::string& own, int root, const Tag& tag,
                   const std::function<void(int rank, const std::string& text)>& take) {
  const auto sizes = gather_sizes(group, own, tag);
  if (group.rank() != root) return group.communicator().send(bytes_of(own), root, tag)->wait();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank == root) {
      take(rank, own);
      continue;
    }
    const auto bytes = at::empty({sizes[static_cast<size_t>(rank)]}, at::kByte);
    group.communicator().recv(bytes, rank, tag)->wait();
    take(rank, std::string(text_in(bytes)));
  }
}

}  // namespace fsdp
