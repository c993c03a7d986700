#include <ATen/ops/empty.h>
#include <fsdp/error.h>
#include <zlib.h>
#include "images/images.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include "comm/core/text.h"

namespace images {
namespace {

constexpr size_t kChunk = 1 << 20;
constexpr size_t kMaxDimensions = 8;

template <class... Message>
[[noreturn]] void fail(const Message&... message) {
  throw fsdp::Error(fsdp::str_cat(message...));
}

// Returns the contents of a file, decompressed if the file is compressed by gzip. Reads in chunks, so that no number in
// the file determines how much memory is allocated.
std::string contents_of(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) fail("cannot read ", path, ": ", std::strerror(errno));
  std::string bytes;
  for (int count = 1; count > 0;) {
    const size_t before = bytes.size();
    bytes.resize(before + kChunk);
    errno = 0;
    count = gzread(file.get(), bytes.data() + before, kChunk);
    bytes.resize(before + static_cast<size_t>(std::max(count, 0)));
  }
  int code = Z_OK;
  const char* what = gzerror(file.get(), &code);
  if (code == Z_ERRNO) fail("cannot read ", path, ": ", std::strerror(errno));
  if (code == Z_BUF_ERROR) fail(path, " is cut off: the compressed data has no end");
  if (code != Z_OK) fail(path, " cannot be decompressed: ", what);
  if (bytes.empty()) fail(path, " is empty, expected an idx file");
  return bytes;
}

uint32_t byte_at(const std::string& bytes, size_t place) { return static_cast<unsigned char>(bytes[place]); }

uint32_t number_at(const std::string& bytes, size_t place) {
  return byte_at(bytes, place) << 24U | byte_at(bytes, place + 1) << 16U | byte_at(bytes, place + 2) << 8U |
         byte_at(bytes, place + 3);
}

struct IdxHeader {
  std::vector<int64_t> sizes;
  size_t bytes = 0;  // number of bytes of the header itself
};

IdxHeader header_of(const std::string& bytes, const std::string& path) {
  constexpr uint32_t kUnsignedBytes = 8;
  const bool has_magic = bytes.size() >= 4 && byte_at(bytes, 0) == 0 && byte_at(bytes, 1) == 0 &&
                         byte_at(bytes, 2) == kUnsignedBytes && byte_at(bytes, 3) >= 1 &&
                         byte_at(bytes, 3) <= kMaxDimensions;
  if (!has_magic)
    fail(path, " is not an idx file of bytes: expected the file to begin with 0 0 8 and the number of dimensions");
  IdxHeader header;
  header.bytes = 4 + 4 * byte_at(bytes, 3);
  if (bytes.size() < header.bytes) fail(path, " is cut off inside its header");
  for (size_t place = 4; place < header.bytes; place += 4) header.sizes.push_back(number_at(bytes, place));
  return header;
}

// Returns the product of `sizes`, or `limit` + 1 if the product is greater than `limit`, so that it cannot overflow.
size_t product_up_to(size_t limit, const std::vector<int64_t>& sizes) {
  size_t product = 1;
  for (const auto size : sizes) {
    if (size == 0) return 0;
    product = product > limit / static_cast<size_t>(size) ? limit + 1 : product * static_cast<size_t>(size);
  }
  return product;
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  const std::string bytes = contents_of(path);
  const auto header = header_of(bytes, path);
  const size_t found = bytes.size() - header.bytes, expected = product_up_to(found, header.sizes);
  if (expected != found)
    fail(path, expected > found ? " is cut off: its header says " : " is too long: its header says ",
         fsdp::str_join(" x ", header.sizes), " bytes, found ", found);
  const auto result = at::empty(header.sizes, at::kByte);
  if (found > 0) std::memcpy(result.mutable_data_ptr(), bytes.data() + header.bytes, found);
  return result;
}

}  // namespace images
