#include "train/event_file.h"

#include <array>

namespace fsdp::train {
namespace {

// Returns the remainders of all bytes divided by Castagnoli's polynomial, in reflected bit order.
constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = crc;
  }
  return table;
}

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xffu];
  return ~crc;
}

template <class Number>
void append_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Appends a varint. It has seven bits of the number per byte, the lowest first; all but the last byte have the highest
// bit set.
void append_varint(std::string& bytes, uint64_t number) {
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>(number | 0x80);
  bytes += static_cast<char>(number);
}

// The kinds of fields in a protocol buffer. A field consists of its number and kind, followed by the value.
enum class Kind : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void begin_field(std::string& bytes, uint32_t field, Kind kind) {
  append_varint(bytes, uint64_t{field} << 3 | static_cast<uint32_t>(kind));
}

void append_bytes(std::string& bytes, uint32_t field, std::string_view value) {
  begin_field(bytes, field, Kind::kBytes);
  append_varint(bytes, value.size());
  bytes += value;
}

std::string event_of(double wall_time, int64_t step) {
  std::string event;
  begin_field(event, 1, Kind::kFixed64);
  append_number(event, wall_time);
  begin_field(event, 2, Kind::kVarint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

std::string event_record(std::string_view event) {
  std::string record;
  append_number(record, static_cast<uint64_t>(event.size()));
  append_number(record, masked_crc32c(record));
  record += event;
  append_number(record, masked_crc32c(event));
  return record;
}

std::string first_event(double wall_time) {
  auto event = event_of(wall_time, 0);
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string scalars_event(double wall_time, int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [name, number] : scalars) {
    std::string value;
    append_bytes(value, 1, name);
    begin_field(value, 2, Kind::kFixed32);
    append_number(value, static_cast<float>(number));
    append_bytes(summary, 1, value);
  }
  auto event = event_of(wall_time, step);
  append_bytes(event, 5, summary);
  return event;
}

}  // namespace fsdp::train
