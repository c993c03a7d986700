#include "state/format/header_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

// The callbacks that the JSON parser calls for each element. Each of them returns true or throws.
class HeaderReader : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  Header take() { return std::move(header_); }

  bool start_object(std::size_t /*elements*/) override {
    if (place_ == Place::kOutside) return go(Place::kTop);
    if (place_ == Place::kTop && name_ == "__metadata__") return go(Place::kMetadata);
    if (place_ != Place::kTop) fail("an object");
    header_.entries.emplace_back().name = name_;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    return go(Place::kEntry);
  }

  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      name_ = key;
      field_.clear();
      if (!names_.insert(key).second) fail("the name twice");
    } else {
      field_ = key;
      if (place_ == Place::kMetadata && header_.metadata.contains(key)) fail("the key twice");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) return go(Place::kEnd);
    if (place_ == Place::kEntry && !(has_dtype_ && has_shape_ && has_offsets_))
      fail("an entry in which at least one of them is missing");
    return go(Place::kTop);
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(field_, text);
      return true;
    }
    if (place_ != Place::kEntry || field_ != "dtype") fail("a string");
    const auto dtype = dtype_named(text);
    if (!dtype) fail("dtype '" + text + "', which is not one of " + dtype_names());
    entry().dtype = *dtype;
    return once(has_dtype_);
  }

  bool start_array(std::size_t /*elements*/) override {
    if (place_ == Place::kEntry && field_ == "shape") return once(has_shape_) && go(Place::kShape);
    if (place_ != Place::kEntry || field_ != "data_offsets") fail("a list");
    offsets_ = 0;
    return once(has_offsets_) && go(Place::kOffsets);
  }

  bool number_unsigned(number_unsigned_t number) override {
    if (number > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) fail("a number beyond 63 bits");
    if (place_ == Place::kShape) {
      if (entry().sizes.size() == kMaxDims) fail("more than " + std::to_string(kMaxDims) + " dimensions");
      entry().sizes.push_back(static_cast<int64_t>(number));
    } else if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry().begin : entry().end) = number;
    } else {
      fail("a number");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) fail("fewer than two data_offsets");
    return go(Place::kEntry);
  }

  bool null() override { fail("null"); }
  bool boolean(bool /*value*/) override { fail("true or false"); }
  bool number_integer(number_integer_t /*number*/) override { fail("a negative number"); }
  bool number_float(number_float_t /*number*/, const string_t& /*text*/) override { fail("a floating point number"); }
  bool binary(binary_t& /*bytes*/) override { fail("bytes"); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    throw FormatError(path_ + ": expected JSON in the header, found something else at byte " +
                      std::to_string(kLengthBytes + position) +
                      ". The file is damaged or is not a safetensors file: use another copy or another checkpoint");
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  Entry& entry() { return header_.entries.back(); }
  bool go(Place place) {
    place_ = place;
    return true;
  }
  bool once(bool& has_field) {
    if (has_field) fail("the field twice");
    return has_field = true;
  }
  [[noreturn]] void fail(const std::string& found) const {
    throw FormatError(path_ + ": entry '" + name_ + "'" + (field_.empty() ? "" : ", field '" + field_ + "'") +
                      ": expected {\"NAME\": {\"dtype\", \"shape\", \"data_offsets\"}} with whole numbers, found " +
                      found +
                      ". The file is damaged or is not a safetensors file: use another copy or another checkpoint");
  }

  const std::string& path_;
  Header header_;
  Place place_ = Place::kOutside;
  std::string name_, field_;
  std::set<std::string> names_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

}  // namespace

Header header_in_json(std::string_view text, const std::string& path) {
  if (text.find('\0') != text.npos)  // the parser would stop there and ignore the rest
    throw FormatError(
        path + ": expected JSON in the header, found a zero byte. The file is damaged or is not a safetensors file");
  HeaderReader reader(path);
  nlohmann::ordered_json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace fsdp::state
