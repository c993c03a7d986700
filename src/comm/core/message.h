#pragma once
/// \file
/// What ranks leave for each other in the store, as text. A message lists its fields once, for both ways:
///
///     struct Report {
///       int rank;
///       std::string what;
///       auto fields() { return std::tie(rank, what); }
///     };

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "comm/core/text.h"

namespace fsdp {

/// Numbers, texts (behind their length, so of any bytes), messages, and lists and maps of these.
template <class T>
void put_field(std::ostream& out, T& field) {
  if constexpr (std::is_same_v<T, const std::string> || std::is_same_v<T, std::string>) {
    out << field.size() << ' ' << field << '\n';
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    out << static_cast<int64_t>(field) << ' ';
  } else if constexpr (requires { field.fields(); }) {
    std::apply([&](auto&... fields) { (put_field(out, fields), ...); }, field.fields());
  } else if constexpr (requires { field.first; }) {
    put_field(out, field.first);
    put_field(out, field.second);
  } else {
    out << field.size() << ' ';
    for (auto& element : field) put_field(out, element);
  }
}

template <class T>
void get_field(std::istream& in, T& field) {
  if constexpr (std::is_same_v<T, std::string>) {
    size_t size = 0;
    in >> size;
    in.get();
    field.resize(size);
    in.read(field.data(), static_cast<std::streamsize>(size));
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    int64_t number = 0;
    in >> number;
    field = static_cast<T>(number);
  } else if constexpr (requires { field.fields(); }) {
    std::apply([&](auto&... fields) { (get_field(in, fields), ...); }, field.fields());
  } else {
    size_t size = 0;
    in >> size;
    for (; size > 0; --size) {
      if constexpr (requires { typename T::mapped_type; }) {
        typename T::key_type key;
        get_field(in, key);
        get_field(in, field[key]);
      } else {
        get_field(in, field.emplace_back());
      }
    }
  }
}

template <class T>
std::string encode(T message) {
  TextWriter out;
  put_field(out, message);
  return out.str();
}

template <class T>
T decode(const std::string& text) {
  TextReader in(text);
  T message;
  get_field(in, message);
  return message;
}

}  // namespace fsdp
