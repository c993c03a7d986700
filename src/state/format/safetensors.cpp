#include "state/format/safetensors.h"

#include <algorithm>
#include <array>

#include "state/format/format_error.h"

namespace fsdp::state {

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  std::array<std::byte, kLengthBytes> length_bytes{};
  file_.read(0, std::span(length_bytes).first(std::min<uint64_t>(kLengthBytes, file_.bytes())));
  const auto length = header_length(length_bytes, file_.bytes(), path);
  data_begin_ = kLengthBytes + length;
  std::string text(data_begin_, '\0');
  file_.read(0, std::as_writable_bytes(std::span(text)));
  header_checksum_ = checksum_of(std::as_bytes(std::span(text)));
  header_ = parse_header(std::string_view(text).substr(kLengthBytes), file_.bytes() - data_begin_, path);
  for (size_t i = 0; i < header_.entries.size(); ++i) index_.emplace(header_.entries[i].name, i);
}

const Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end())
    throw FormatError(path() + ": expected an entry '" + name + "', found " +
                      std::to_string(header_.entries.size()) + " entries with other names");
  return header_.entries[found->second];
}

void SafetensorsFile::read(const Entry& entry, uint64_t offset, std::span<std::byte> out) const {
  if (offset > entry.bytes() || out.size() > entry.bytes() - offset)
    throw FormatError(path() + ": entry '" + entry.name + "' has " + std::to_string(entry.bytes()) + " bytes, so " +
                      std::to_string(out.size()) + " bytes cannot be read at byte " + std::to_string(offset));
  file_.read(data_begin_ + entry.begin + offset, out);
}

void SafetensorsFile::read_checked(const Entry& entry, std::span<const uint64_t> checksums, uint64_t offset,
                                   std::span<std::byte> out) const {
  std::vector<std::byte> around;  // a whole chunk, if the caller wants only a part of it
  while (!out.empty()) {
    const auto chunk = offset / kChunkBytes, begin = chunk * kChunkBytes;
    const auto bytes = std::min(kChunkBytes, entry.bytes() - std::min(entry.bytes(), begin));
    const auto wanted = std::min<uint64_t>(out.size(), begin + bytes - std::min(offset, begin + bytes));
    if (chunk >= checksums.size() || wanted == 0)
      throw FormatError(path() + ": entry '" + entry.name + "' has no checksum for byte " + std::to_string(offset));
    auto all = out.first(wanted);
    if (wanted < bytes) {
      around.resize(bytes);
      all = around;
    }
    read(entry, begin, all);
    if (const auto found = checksum_of(all); found != checksums[chunk])
      throw FormatError(path() + ": entry '" + entry.name + "': expected the checksum " + hex_of(checksums[chunk]) +
                        " of bytes " + std::to_string(begin) + " to " + std::to_string(begin + bytes) + ", found " +
                        hex_of(found) + ". The file is damaged: use another copy or another checkpoint");
    if (wanted < bytes) std::copy_n(around.begin() + static_cast<ptrdiff_t>(offset - begin), wanted, out.begin());
    offset += wanted;
    out = out.subspan(wanted);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<Entry> entries,
                                     std::map<std::string, std::string> metadata)
    : file_(path), header_{std::move(entries), std::move(metadata)} {
  lay_out(header_.entries, path);
  const auto text = header_text(header_);
  if (text.size() - kLengthBytes > kMaxHeaderBytes)
    throw FormatError(path + ": " + std::to_string(header_.entries.size()) +
                      " entries make a header that is larger than readers accept. Write the entries to several files");
  written_.bytes = text.size();
  written_.header_checksum = checksum_of(std::as_bytes(std::span(text)));
  file_.write(text);
  close_full_entries();
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (entry_ == header_.entries.size())
      throw FormatError(file_.path() + ": " + std::to_string(bytes.size()) +
                        " more bytes were written than the entries have");
    // Pieces are so small that computing the checksum leaves a piece in the processor's cache for the write.
    const auto most = std::min(kChunkBytes, header_.entries[entry_].end - data_bytes_);
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), most));
    checksums_.add(part);
    file_.write(part);
    data_bytes_ += part.size();
    bytes = bytes.subspan(part.size());
    close_full_entries();
  }
}

void SafetensorsWriter::close_full_entries() {
  for (; entry_ < header_.entries.size() && header_.entries[entry_].end == data_bytes_; ++entry_)
    written_.checksums[header_.entries[entry_].name] = checksums_.take();
}

WrittenFile SafetensorsWriter::finish() {
  if (entry_ < header_.entries.size())
    throw FormatError(file_.path() + ": entry '" + header_.entries[entry_].name + "' was not written completely");
  written_.bytes += data_bytes_;
  file_.commit();
  return std::move(written_);
}

}  // namespace fsdp::state
