#pragma once
/// \file
/// The header of a safetensors file. The file begins with 8 bytes that contain the length of the header's JSON in
/// little-endian order; then follow the JSON and the tensors' bytes. The section "Format" of
/// https://huggingface.co/docs/safetensors describes the layout and its limits.
///
/// Complex dtypes that the format does not have are stored as pairs of real numbers, in a last dim of size 2: a C128
/// tensor [5, 3] is an F64 entry [5, 3, 2], with the metadata "fsdp.dtype.NAME": "C128". An `Entry` always has the
/// tensor's own dtype and sizes, C128 and [5, 3] in this example.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/header_json.h"

namespace fsdp::state {

/// Largest header that the safetensors format allows, in bytes.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Returns the length of the JSON text, which the first 8 bytes of a file contain. `path` is for error messages. Throws
/// FormatError if a file of `file_bytes` bytes is too short for this length.
uint64_t header_length(std::span<const std::byte> first_bytes, uint64_t file_bytes, const std::string& path);

/// Parses the JSON of a header that is followed by `data_bytes` bytes. Needs memory in proportion to the length of the
/// text, even if the text is malicious. Throws FormatError unless every entry has a known dtype and as many bytes as
/// its sizes need, names are unique, and the entries cover the data without gaps.
Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& path);

/// Sorts the entries by descending element size, so that all of them are aligned, and assigns their offsets. Throws
/// FormatError for a repeated or invalid name, and for sizes that a safetensors file cannot store.
void lay_out(std::vector<Entry>& entries, const std::string& path);

/// Returns the entry's sizes in the file, with a last dim of size 2 if the entry is stored as pairs.
std::vector<int64_t> stored_sizes(const Entry& entry);

/// Returns the beginning of the file: the length and the JSON, padded so that the data begins at a multiple of 8 bytes.
std::string header_text(const Header& header);

}  // namespace fsdp::state
