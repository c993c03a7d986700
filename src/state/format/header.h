#pragma once
/// \file
/// The header of a safetensors file: 8 bytes with its length, little endian; JSON; then the tensors' bytes.
/// Layout and limits: https://huggingface.co/docs/safetensors, section "Format".
///
/// Complex numbers of which the format has no name are pairs of real ones, in a last dimension of size 2: a tensor
/// [5, 3] of C128 is an entry [5, 3, 2] of F64, beside the metadata "fsdp.dtype.NAME": "C128". Entries here have the
/// tensor's own dtype and sizes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "state/format/header_json.h"

namespace fsdp::state {

/// No reader takes longer headers.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// The length of the JSON that the first bytes of a file announce. `path` is for errors. Throws FormatError if it is
/// not in a file of `file_bytes`.
uint64_t header_length(std::span<const std::byte> first_bytes, uint64_t file_bytes, const std::string& path);

/// Reads the JSON of a header that `data_bytes` follow. Memory that is used is in proportion to the text, whatever it
/// says. Throws FormatError unless every entry has a known dtype and the bytes of its sizes, names are different, and
/// the entries cover the data without gaps.
Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& path);

/// Gives each entry its place, those with the largest elements first, so that all of them are aligned. Throws
/// FormatError for a name that comes twice or that a file cannot have.
void lay_out(std::vector<Entry>& entries, const std::string& path);

/// The sizes of an entry as the file has them: those of pairs where the format has no name for the dtype.
std::vector<int64_t> stored_sizes(const Entry& entry);

/// The first bytes of the file, length and JSON, padded so that the data begins on 8 bytes.
std::string header_text(const Header& header);

}  // namespace fsdp::state
