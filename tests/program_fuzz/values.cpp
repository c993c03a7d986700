#include "program_fuzz/values.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace fsdp::test::fuzz {
namespace {

// A value without its numbers, which follow it.
struct Header {
  int32_t statement, item, rank;
  bool is_defined, is_rows;
  double tolerance;
  int64_t first, rows, all_rows, numel;
};

}  // namespace

Value value_of(const at::Tensor& tensor) {
  Value value;
  value.is_defined = tensor.defined();
  if (!tensor.defined()) return value;
  const at::NoGradGuard no_grad;
  const auto flat = tensor.detach().to(at::kDouble).contiguous().view({-1});
  value.numbers.assign(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
  return value;
}

void ValueWriter::put(const void* data, size_t bytes) {
  TORCH_CHECK(used_ + bytes <= memory_.size(), "the values of a program do not fit into ", memory_.size(), " bytes");
  if (bytes > 0) std::memcpy(memory_.data() + used_, data, bytes);
  used_ += bytes;
}

void ValueWriter::write(const Value& v) {
  const Header header{v.statement, v.item,  v.rank, v.is_defined, v.is_rows,
                      v.tolerance, v.first, v.rows, v.all_rows,   static_cast<int64_t>(v.numbers.size())};
  put(&header, sizeof header);
  put(v.numbers.data(), v.numbers.size() * sizeof(double));
}

std::vector<Value> read_values(std::span<const std::byte> memory) {
  std::vector<Value> values;
  for (size_t at = 0; at < memory.size();) {
    Header h;
    std::memcpy(&h, memory.data() + at, sizeof h);
    at += sizeof h;
    Value value{h.statement, h.item, h.rank, h.is_defined, h.tolerance, h.is_rows, h.first, h.rows, h.all_rows};
    value.numbers.resize(static_cast<size_t>(h.numel));
    if (h.numel > 0) std::memcpy(value.numbers.data(), memory.data() + at, value.numbers.size() * sizeof(double));
    at += value.numbers.size() * sizeof(double);
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace fsdp::test::fuzz
