#pragma once
/// \file
/// What a caller may pass to a communicator. Checked before anything is communicated.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <span>
#include <string_view>

namespace fsdp {

/// Every check throws UsageError naming the operation, its subject, what was expected and what was found.
struct Arguments {
  int rank = 0, world_size = 1;

  void check_tensor(const at::Tensor& tensor, std::string_view operation, const Tag& tag) const;
  void check_rank(int peer, std::string_view operation, const Tag& tag, bool may_be_self) const;
  void check_message(const at::Tensor& tensor, int peer, std::string_view operation, const Tag& tag) const;
  void check_all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                        const Tag& tag) const;
  void check_reduce_scatter(const at::Tensor& output, std::span<const Piece> input, std::span<const int64_t> offsets,
                            const Tag& tag) const;

 private:
  void check_offsets(std::span<const int64_t> offsets, int64_t numel, const at::Tensor& own, std::string_view operation,
                     const Tag& tag) const;
  void check_alike(const at::Tensor& a, const at::Tensor& b, std::string_view operation, const Tag& tag) const;
};

}  // namespace fsdp
