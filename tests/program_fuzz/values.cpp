#include "program_fuzz/values.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <sstream>

namespace fsdp::test::fuzz {
namespace {

// Returns the part of a whole value that a rank holds.
std::vector<double> part_of(const Value& whole, const Value& rows) {
  if (!rows.is_rows) return whole.numbers;
  const auto begin = whole.numbers.begin() + rows.first;
  return {begin, begin + rows.count};
}

std::string list_of(const std::vector<double>& numbers) {
  std::ostringstream text;
  text << std::setprecision(9) << '[';
  for (size_t i = 0; i < std::min<size_t>(numbers.size(), 4); ++i) text << (i == 0 ? "" : ", ") << numbers[i];
  text << (numbers.size() > 4 ? ", ...]" : "]");
  return text.str();
}

std::string difference(const Value& expected, const Value& found) {
  if (expected.is_defined != found.is_defined)
    return found.is_defined ? "expected none, found " + list_of(found.numbers)
                            : "expected " + list_of(expected.numbers) + ", found none";
  if (!expected.is_defined) return {};
  const auto wanted = part_of(expected, found);
  if (wanted.size() != found.numbers.size())
    return c10::str("expected ", wanted.size(), " numbers, found ", found.numbers.size());
  double largest = 0, worst = 0;
  for (double number : wanted) largest = std::max(largest, std::abs(number));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == found.numbers[i] || (std::isnan(wanted[i]) && std::isnan(found.numbers[i]))) continue;
    const double apart = std::abs(wanted[i] - found.numbers[i]);
    worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
  }
  if (worst == 0 || worst <= expected.tolerance * largest) return {};
  return c10::str("expected ", list_of(wanted), ", found ", list_of(found.numbers), ", relative difference ",
                  worst / largest, expected.tolerance == 0 ? ", not the same bits" : "");
}

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

size_t write_values(const std::vector<Value>& values, std::span<std::byte> memory) {
  size_t used = 0;
  const auto put = [&](const void* data, size_t bytes) {
    TORCH_CHECK(used + bytes <= memory.size(), "the values of a program do not fit into ", memory.size(), " bytes");
    if (bytes > 0) std::memcpy(memory.data() + used, data, bytes);
    used += bytes;
  };
  for (const auto& value : values) {
    ValueHeader header = value;
    header.numel = value.numbers.size();
    put(&header, sizeof header);
    put(value.numbers.data(), header.numel * sizeof(double));
  }
  return used;
}

std::vector<Value> read_values(std::span<const std::byte> memory) {
  std::vector<Value> values;
  for (size_t at = 0; at < memory.size();) {
    ValueHeader header;
    std::memcpy(&header, memory.data() + at, sizeof header);
    auto& numbers = values.emplace_back(Value{header}).numbers;
    numbers.resize(header.numel);
    if (header.numel > 0)
      std::memcpy(numbers.data(), memory.data() + at + sizeof header, header.numel * sizeof(double));
    at += sizeof header + header.numel * sizeof(double);
  }
  return values;
}

std::optional<Finding> compare(int rank, const std::vector<Value>& expected, const std::vector<Value>& found) {
  std::vector<const Value*> wanted;
  for (const auto& value : expected)
    if (value.rank == rank) wanted.push_back(&value);
  for (size_t i = 0; i < std::min(wanted.size(), found.size()); ++i) {
    const auto& value = found[i];
    if (wanted[i]->statement != value.statement || wanted[i]->item != value.item)
      return Finding{Wrong::kValue, rank, value.statement, "a value that the unsharded run does not have"};
    if (const auto text = difference(*wanted[i], value); !text.empty())
      return Finding{Wrong::kValue, rank, value.statement, c10::str("value ", value.item, ": ", text)};
  }
  if (wanted.size() == found.size()) return std::nullopt;
  return Finding{Wrong::kValue, rank, 0, c10::str("expected ", wanted.size(), " values, found ", found.size())};
}

}  // namespace fsdp::test::fuzz
