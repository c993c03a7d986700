#pragma once
/// \file
/// Messages that ranks write to the store for each other, as text. A message type lists its fields once, for writing
/// and for reading:
///
///     struct Report {
///       int rank;
///       std::string what;
///       auto fields() { return std::tie(rank, what); }
///     };

#include <cstddef>
#include <cstdint>
#include <istream>
#include <iterator>
#include <string>
#include <tuple>
#include <type_traits>

#include "comm/core/text.h"

namespace fsdp {

template <class Stream>
inline constexpr bool kReads = std::is_base_of_v<std::istream, Stream>;

/// Writes a field to an output stream or reads it from an input stream. A field is a number, a text (written after its
/// length, so it can hold any bytes), a message, or a list or map of these.
template <class Stream, class T>
void pass_field(Stream& stream, T& field) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    auto number = static_cast<int64_t>(field);
    if constexpr (kReads<Stream>) {
      stream >> number;
      field = static_cast<T>(number);
    } else {
      stream << number << ' ';
    }
  } else if constexpr (requires { field.fields(); }) {
    std::apply([&](auto&... fields) { (pass_field(stream, fields), ...); }, field.fields());
  } else if constexpr (requires { field.first; }) {
    pass_field(stream, field.first);
    pass_field(stream, field.second);
  } else {
    int64_t size = std::ssize(field);
    pass_field(stream, size);
    if constexpr (std::is_same_v<std::remove_const_t<T>, std::string>) {
      if constexpr (kReads<Stream>) {
        stream.get();
        field.resize(static_cast<size_t>(size));
        stream.read(field.data(), size);
      } else {
        stream << field;
      }
    } else if constexpr (!kReads<Stream>) {
      for (auto& element : field) pass_field(stream, element);
    } else {
      for (int64_t i = 0; i < size; ++i) {
        if constexpr (requires { typename T::mapped_type; }) {
          typename T::key_type key;
          pass_field(stream, key);
          pass_field(stream, field[key]);
        } else {
          pass_field(stream, field.emplace_back());
        }
      }
    }
  }
}

template <class T>
std::string encode(T message) {
  TextWriter out;
  pass_field(out, message);
  return out.str();
}

template <class T>
T decode(const std::string& text) {
  TextReader in(text);
  T message;
  pass_field(in, message);
  return message;
}

}  // namespace fsdp
