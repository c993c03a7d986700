#include "collectives_report.h"

#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "statistics.h"

namespace bench {
namespace {

constexpr int kNameWidth = 14, kBytesWidth = 11, kTimeWidth = 13, kBandwidthWidth = 9;

double copy_bandwidth(const CollectiveRow& row) { return static_cast<double>(row.bytes) / row.copy_microseconds / 1e3; }

std::string mebibytes(int64_t bytes) {
  std::ostringstream text;
  text << static_cast<double>(bytes) / (1 << 20) << " MiB";
  return text.str();
}

void add_time(std::ostream& out, double microseconds, double bandwidth, bool moves_data) {
  out << std::setw(kTimeWidth) << microseconds << std::setw(kBandwidthWidth);
  moves_data ? out << bandwidth : out << '-';
}

}  // namespace

double bus_bandwidth(const CollectiveRow& row, double microseconds) {
  return static_cast<double>(row.bytes) * row.bus_share / microseconds / 1e3;
}

std::string to_table(const CollectivesReport& report) {
  std::ostringstream out;
  out << report.world
      << " ranks, one thread each. Medians of the slowest rank's time; GB/s: bus bandwidth. Every result "
      << "was verified.\nMemory of a rank: " << mebibytes(report.buffer_bytes) << " of buffers; at most "
      << static_cast<int64_t>(report.peak_resident_mb) << " MiB resident, communicators and libraries included.\n\n";
  out << std::left << std::setw(kNameWidth) << "collective" << std::right << std::setw(kBytesWidth) << "bytes";
  for (const auto& backend : report.backends) {
    out << std::setw(kTimeWidth) << backend + " us" << std::setw(kBandwidthWidth) << "GB/s";
  }
  out << std::setw(kTimeWidth) << "memcpy us" << std::setw(kBandwidthWidth) << "GB/s" << std::setprecision(3)
      << std::fixed << '\n';
  for (const auto& row : report.rows) {
    const bool moves_data = row.bytes > 0;
    out << std::left << std::setw(kNameWidth) << row.collective << std::right << std::setw(kBytesWidth) << row.bytes;
    for (const double microseconds : row.microseconds) {
      add_time(out, microseconds, bus_bandwidth(row, microseconds), moves_data);
    }
    if (moves_data) add_time(out, row.copy_microseconds, copy_bandwidth(row), moves_data);
    out << '\n';
  }
  return out.str();
}

std::string to_json(const CollectivesReport& report) {
  nlohmann::ordered_json json, rows;
  for (const auto& row : report.rows) {
    nlohmann::ordered_json entry = {
        {"collective", row.collective}, {"bytes", row.bytes}, {"repetitions", row.repetitions}};
    for (size_t i = 0; i < report.backends.size(); ++i) {
      entry[report.backends[i]] = {{"us", round_to(row.microseconds[i], 3)},
                                   {"bus_gb_per_s", round_to(bus_bandwidth(row, row.microseconds[i]), 6)}};
    }
    if (row.bytes > 0) {
      entry["memcpy"] = {{"us", round_to(row.copy_microseconds, 3)}, {"gb_per_s", round_to(copy_bandwidth(row), 6)}};
    }
    rows.push_back(entry);
  }
  json["world"] = report.world;
  json["backends"] = report.backends;
  json["buffer_bytes"] = report.buffer_bytes;
  json["peak_resident_mb"] = round_to(report.peak_resident_mb, 0);
  json["rows"] = rows;
  return json.dump();
}

}  // namespace bench
