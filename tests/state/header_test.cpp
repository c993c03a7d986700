// Tests of what the header of a safetensors file may contain.

#include "state/format/header.h"

#include <c10/util/StringUtil.h>
#include <gmock/gmock.h>

#include <random>

#include "state/files.h"
#include "state/format/format_error.h"

namespace fsdp::state {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of_header(const std::string& json, uint64_t data_bytes = 8) {
  return text_of_error([&] { parse_header(json, data_bytes, "a.safetensors"); });
}

TEST(StateHeader, IsReadAsItWasWritten) {
  Header header{{{"b", Dtype::kBFloat16, {3}}, {"a.x", Dtype::kFloat64, {2, 2}}, {"scalar", Dtype::kFloat32, {}}},
                {{"format", "pt"}}};
  lay_out(header.entries, "file");
  const auto text = header_text(header);
  EXPECT_EQ(text.size() % 8, 0u);
  const auto read = parse_header(std::string_view(text).substr(kLengthBytes), 32 + 4 + 6, "file");
  ASSERT_EQ(read.entries.size(), 3u);
  EXPECT_EQ(read.entries[0].name, "a.x") << "the largest elements come first";
  EXPECT_EQ(read.entries[1].name, "scalar");
  EXPECT_EQ(read.entries[1].bytes(), 4u);
  EXPECT_EQ(read.entries[2].sizes, std::vector<int64_t>{3});
  EXPECT_EQ(read.metadata.at("format"), "pt");
}

TEST(StateHeader, ComplexNumbersWithoutANameArePairs) {
  Header header{{{"a", Dtype::kComplex128, {5, 3}}, {"b", Dtype::kComplex32, {}}, {"c", Dtype::kComplex64, {2}}}, {}};
  lay_out(header.entries, "file");
  const auto text = header_text(header).substr(kLengthBytes);
  EXPECT_THAT(text, HasSubstr(R"("a":{"dtype":"F64","shape":[5,3,2],)"));
  EXPECT_THAT(text, HasSubstr(R"("b":{"dtype":"F16","shape":[2],)"));
  EXPECT_THAT(text, HasSubstr(R"({"fsdp.dtype.a":"C128","fsdp.dtype.b":"C32"})"));
  const auto read = parse_header(text, 5 * 3 * 16 + 2 * 8 + 4, "file");
  EXPECT_THAT(read.metadata, IsEmpty());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.entries[i].dtype, header.entries[i].dtype);
    EXPECT_EQ(read.entries[i].sizes, header.entries[i].sizes);
  }
}

std::string entry(const char* dtype, const std::string& shape, const std::string& offsets, const char* name = "a") {
  return c10::str('"', name, R"(":{"dtype":")", dtype, R"(","shape":[)", shape, R"(],"data_offsets":[)", offsets, "]}");
}

TEST(StateHeader, IsRefusedAndSaysWhatWasExpected) {
  struct Refused {
    std::string entries, says;
    uint64_t data_bytes = 8;
  };
  const Refused all[] = {
      // The number of bytes does not match the sizes.
      {entry("F32", "3", "0,8", "w"),
       "a.safetensors: entry 'w' of sizes [3] and dtype F32: expected 12 bytes, found data_offsets [0, 8]"},
      {entry("U8", "8", "8,0"), "expected 8 bytes"},
      // Entries overlap, leave gaps or end in the wrong place.
      {entry("F32", "1", "0,4") + "," + entry("F32", "1", "0,4", "b"), "entry 'b': expected its data at byte 4"},
      {entry("F32", "1", "4,8"), "at byte 0"},
      {entry("F32", "1", "0,4"), "expected 4 bytes of data after the header, found 8"},
      {entry("F32", "2", "0,8"), "found 4", 4},
      // Complex numbers are pairs. These pairs have another dtype, a last size other than 2, or a dtype that does not
      // exist.
      {R"("__metadata__":{"fsdp.dtype.a":"C128"},)" + entry("F32", "1,2", "0,8"),
       "the metadata gives this entry the dtype 'C128'"},
      {R"("__metadata__":{"fsdp.dtype.a":"C32"},)" + entry("F16", "4", "0,8"),
       "the metadata gives this entry the dtype 'C32'"},
      {R"("__metadata__":{"fsdp.dtype.a":"C3"},)" + entry("F16", "2,2", "0,8"),
       "the metadata gives this entry the dtype 'C3'"},
      // Sizes overflow or are negative.
      {entry("F32", "4611686018427387905", "0,4"), "expected sizes that fit into memory"},
      {entry("U8", "0,9223372036854775807,3", "0,0"), "expected sizes that fit into memory", 0},
      {entry("U8", "18446744073709551615", "0,8"), "63 bits"},
      {entry("U8", "-8", "0,8"), "negative"},
      // A name, a field or a key appears twice.
      {entry("U8", "8", "0,8") + "," + entry("U8", "0", "8,8"),
       R"(entry 'a': expected {"NAME": {"dtype", "shape", "data_offsets"}} with whole numbers, found the name twice)"},
      {R"("a":{"dtype":"U8","dtype":"I8","shape":[8],"data_offsets":[0,8]})", "found the field twice"},
      {R"("__metadata__":{"k":"1","k":"2"})", "found the key twice", 0}};
  for (const auto& [entries, says, data_bytes] : all)
    EXPECT_THAT(error_of_header("{" + entries + "}", data_bytes), HasSubstr(says)) << entries;
}

TEST(StateHeader, IsNothingElseThanSafetensorsHas) {
  for (const auto* json : {"", "3", "[]", "null", "{", R"({"a":3})", R"({"a":[]})", R"({"a":{}})",
                           R"({"a":{"dtype":"F32"}})", R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
                           R"({"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}})",
                           R"({"a":{"dtype":"U8","shape":[[8]],"data_offsets":[0,8]}})",
                           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}})",
                           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,4,8]}})",
                           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1}})",
                           R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}} x)", R"({"__metadata__":{"k":1}})",
                           R"({"__metadata__":{"k":{}}})", R"({"__metadata__":[]})"})
    EXPECT_THAT(error_of_header(json), HasSubstr("a.safetensors")) << json;
  EXPECT_THAT(error_of_header(std::string(R"({})") + '\0' + "x", 0), HasSubstr("found a zero byte"));
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"k":"v"}}  )", 0), IsEmpty());
}

TEST(StateHeader, LengthIsThatOfBytesWhichAreThere) {
  const auto length = [](uint64_t announced, uint64_t file_bytes) {
    std::vector<std::byte> bytes;
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(announced >> (8 * i)));
    return header_length(bytes, file_bytes, "a.safetensors");
  };
  EXPECT_EQ(length(16, 24), 16u);
  EXPECT_THAT(text_of_error([&] { length(17, 24); }), HasSubstr("at most 16 bytes, found a length of 17"));
  EXPECT_THAT(text_of_error([&] { length(~uint64_t{0}, 24); }), HasSubstr("18446744073709551615"));
  EXPECT_THAT(text_of_error([&] { length(kMaxHeaderBytes + 1, uint64_t{1} << 40); }), HasSubstr("100000000"));
  EXPECT_THAT(text_of_error([&] { length(0, 7); }), HasSubstr("found 7 bytes"));
}

TEST(StateHeader, AnyTextIsReadOrRefused) {
  const std::string text =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}})";
  std::mt19937 random(1);
  for (int trial = 0; trial < 5000; ++trial) {
    auto changed = text;
    for (auto changes = random() % 4; changes-- > 0;) {
      const auto at = random() % changed.size();
      switch (random() % 3) {
        case 0:
          changed[at] = static_cast<char>(random());
          break;
        case 1:
          changed.erase(at, random() % 8);
          break;
        default:
          changed.insert(at, text.substr(random() % text.size(), random() % 8));
      }
    }
    try {
      uint64_t bytes = 0;
      for (const auto& entry : parse_header(changed, 8, "a.safetensors").entries) bytes += entry.bytes();
      EXPECT_EQ(bytes, 8u) << changed;
    } catch (const FormatError&) {
    }
  }
}

}  // namespace
}  // namespace fsdp::state
