#pragma once
/// \file
/// The element types of safetensors files.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp::state {

enum class Dtype : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kFloat8E5M2,
  kFloat8E4M3,
  kInt16,
  kUInt16,
  kFloat16,
  kBFloat16,
  kInt32,
  kUInt32,
  kFloat32,
  kFloat64,
  kInt64,
  kUInt64,
  kComplex64,
};

/// As safetensors writes it: "F32".
std::string_view name_of(Dtype dtype);
std::optional<Dtype> dtype_named(std::string_view name);
/// All names, for errors.
std::string dtype_names();
uint64_t bytes_of(Dtype dtype);

}  // namespace fsdp::state
