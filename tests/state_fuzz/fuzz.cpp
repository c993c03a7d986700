// libFuzzer calls the function in this file. It takes any bytes as a safetensors file and as a manifest, which must be
// read or refused without more memory than the bytes take. tests/state_fuzz/state_fuzz_test.py builds and runs it.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "state/format/header.h"
#include "state/format/manifest.h"

namespace {

// Returns a manifest with its correct checksum. Without that, the reader would stop at the checksum.
std::string manifest_with(std::string_view rest) {
  constexpr std::string_view kBegin = "{\n \"checksum\": \"", kNoChecksum = "0000000000000000";
  std::string text(kBegin);
  text.append(kNoChecksum).append(rest);
  const auto checksum = fsdp::state::checksum_of(std::as_bytes(std::span(text)));
  return text.replace(kBegin.size(), kNoChecksum.size(), fsdp::state::hex_of(checksum));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdp::state;
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto length = header_length(bytes, size, "fuzz");
    const auto header = parse_header(text.substr(kLengthBytes, length), size - kLengthBytes - length, "fuzz");
    uint64_t end = 0;
    for (const auto& entry : header.entries) {
      if (entry.begin != end || entry.end < entry.begin) std::abort();
      end = entry.end;
    }
    if (end != size - kLengthBytes - length) std::abort();
  } catch (const FormatError&) {
  }
  try {
    for (const auto& [name, file] : parse_manifest(manifest_with(text), "fuzz").files)
      if (!is_plain_name(name)) std::abort();
  } catch (const FormatError&) {
  }
  return 0;
}
