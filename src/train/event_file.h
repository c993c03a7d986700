#pragma once
/// \file
/// Encodes the records of TensorBoard event files, in the format that TensorFlow writes.
///
/// A record consists of its length, the length's checksum, the event, and the event's checksum
/// (tensorflow/core/lib/io/record_writer.h). An event is a protocol buffer (tensorflow/core/util/event.proto) with a
/// time, a step and numbers. Numbers are little-endian, so the machine must be little-endian too.

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

/// Returns the checksum of a record: the CRC-32C (RFC 3720, appendix B.4) of `bytes`, rotated and increased by a
/// constant. The format masks checksums in this way, because a CRC of data that contains CRCs is problematic.
uint32_t masked_crc32c(std::string_view bytes);

/// Returns a record that contains `event`.
std::string event_record(std::string_view event);
/// Returns the event with which a file begins. `wall_time` is in seconds since 1970.
std::string first_event(double wall_time);
/// Returns the event with the numbers of one step.
std::string scalars_event(double wall_time, int64_t step, std::span<const std::pair<std::string, double>> scalars);

}  // namespace fsdp::train
