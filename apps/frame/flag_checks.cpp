#include "frame/flag_checks.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <sstream>

namespace frame {
namespace {

CLI::Validator number(const std::string& what, const std::function<bool(double)>& is_right) {
  const auto check = [=](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool is_number = end != text.c_str() && *end == '\0' && std::isfinite(value);
    return is_number && is_right(value) ? std::string() : "expected a number " + what + ", found " + text;
  };
  return {check, ""};
}

}  // namespace

CLI::Validator positive_number() {
  return number("above 0", [](double value) { return value > 0; });
}

CLI::Validator number_from_0(double most) {
  std::ostringstream what;
  what << "from 0";
  if (most < std::numeric_limits<double>::max()) what << " to " << most;
  return number(what.str(), [most](double value) { return value >= 0 && value <= most; });
}

CLI::Validator count() { return CLI::Range(int64_t{1}, int64_t{1} << 30); }

CLI::Validator count_or_none() { return CLI::Range(int64_t{0}, int64_t{1} << 30); }

CLI::Validator seed() { return CLI::Range(int64_t{0}, int64_t{1} << 62); }

CLI::Validator threads() { return CLI::Range(1, 1024); }

CLI::Validator path() {
  return {[](const std::string& text) { return std::string(text.empty() ? "expected a path, found none" : ""); }, ""};
}

}  // namespace frame
