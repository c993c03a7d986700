#include "pattern.h"

#include <fsdp/error.h>

namespace bench {

void fill(const at::Tensor& tensor, PatternKey key, int64_t first) {
  auto* data = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) data[i] = pattern(key, first + i);
}

void expect_sum(const at::Tensor& tensor, const std::string& what, uint32_t begin_rank, uint32_t end_rank,
                uint32_t round, int64_t first) {
  const auto* data = tensor.const_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    float expected = 0;
    for (uint32_t rank = begin_rank; rank < end_rank; ++rank) expected += pattern({rank, round}, first + i);
    if (data[i] == expected) continue;
    throw fsdp::Error(c10::str(what, ": element ", first + i, " is wrong: expected ", expected, ", found ", data[i],
                               ". This is a defect of the backend, so all its figures are invalid."));
  }
}

}  // namespace bench
