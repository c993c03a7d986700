#pragma once
/// \file
/// The header of a safetensors file: 8 bytes with its length in little-endian order, then JSON, then the tensors'
/// bytes. Layout and limits: https://huggingface.co/docs/safetensors, section "Format".
///
/// Complex dtypes that the format does not have are stored as pairs of real numbers, in a last dimension of size 2: a
/// C128 tensor [5, 3] is an F64 entry [5, 3, 2], with the metadata "fsdp.dtype.NAME": "C128". In this code, entries
/// have the tensor's own dtype and sizes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/header_json.h"

namespace fsdp::state {

/// Limit of the safetensors format.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// The length of the JSON text, from the first bytes of a file. `path` is for error messages. Throws FormatError if a
/// file of `file_bytes` cannot contain it.
uint64_t header_length(std::span<const std::byte> first_bytes, uint64_t file_bytes, const std::string& path);

/// Parses the JSON of a header that is followed by `data_bytes` bytes. Memory use is proportional to the text, whatever
/// it contains. Throws FormatError unless every entry has a known dtype and as many bytes as its sizes need, names are
/// unique, and the entries cover the data without gaps.
Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& path);

/// Assigns offsets to the entries, in the order of descending element size, so that all are aligned. Throws FormatError
/// for a repeated or invalid name.
void lay_out(std::vector<Entry>& entries, const std::string& path);

/// The entry's sizes in the file, with a last dimension of 2 if it is stored as pairs.
std::vector<int64_t> stored_sizes(const Entry& entry);

/// The beginning of the file, length and JSON, padded so that the data begins at a multiple of 8 bytes.
std::string header_text(const Header& header);

}  // namespace fsdp::state
