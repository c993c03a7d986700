#pragma once
/// \file
/// TensorBoard's files: records of events, as TensorFlow writes them.
///
/// A record is its length, the length's checksum, the event, and the event's checksum
/// (tensorflow/core/lib/io/record_writer.h); an event is a protocol buffer (tensorflow/core/util/event.proto) with a
/// time, a step and numbers. Numbers are little endian, as this machine's have to be.

#include <bit>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::train {

static_assert(std::endian::native == std::endian::little);

/// CRC-32C (RFC 3720, appendix B.4), rotated and shifted as records have it: so that the checksum of a text that has
/// checksums in it is none of them.
uint32_t masked_crc32c(std::string_view bytes);

/// The bytes of a record.
std::string event_record(std::string_view event);
/// The bytes of events: the first one of a file, and that of a step.
std::string first_event(double wall_time);
std::string scalars_event(double wall_time, int64_t step, std::span<const std::pair<std::string, double>> scalars);

}  // namespace fsdp::train
