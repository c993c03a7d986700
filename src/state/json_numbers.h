#pragma once
/// \file
/// JSON representation of floating-point numbers. JSON has neither infinities nor NaN, so they become the strings
/// "Infinity", "-Infinity" and "NaN".

#include <cmath>
#include <limits>
#include <string>

namespace fsdp::state {

/// Returns a number, or a list of numbers, as a checkpoint file stores it. `Json` is a type of the library nlohmann.
template <class Json>
Json written_numbers(Json value) {
  if (value.is_array())
    for (auto& element : value) element = written_numbers(std::move(element));
  if (!value.is_number_float() || std::isfinite(value.template get<double>())) return value;
  const auto number = value.template get<double>();
  return std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity";
}

/// The inverse of written_numbers.
template <class Json>
Json read_numbers(Json value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.is_array())
    for (auto& element : value) element = read_numbers(std::move(element));
  if (value == "Infinity") return kInfinity;
  if (value == "-Infinity") return -kInfinity;
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return value;
}

}  // namespace fsdp::state
