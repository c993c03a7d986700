#pragma once
/// \file
/// TensorBoard event files, in the format that TensorFlow writes.
///
/// A record consists of its length, the length's checksum, the event, and the event's checksum
/// (tensorflow/core/lib/io/record_writer.h). An event is a protocol buffer (tensorflow/core/util/event.proto) with a
/// time, a step and numbers. Numbers are little-endian, which the machine must be too.

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

/// The checksum of a record: CRC-32C (RFC 3720, appendix B.4), which the format masks by a rotation and an addition,
/// since computing a CRC of data that contains CRCs is problematic.
uint32_t masked_crc32c(std::string_view bytes);

/// A record that contains `event`.
std::string event_record(std::string_view event);
/// The first event of a file, and the event of one step.
std::string first_event(double wall_time);
std::string scalars_event(double wall_time, int64_t step, std::span<const std::pair<std::string, double>> scalars);

}  // namespace fsdp::train
