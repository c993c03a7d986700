#include <ATen/ops/empty.h>
#include "images/images.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace images {
namespace {

constexpr int kSide = 28;
// The size of a digit without margins, in pixels.
constexpr double kHeight = 19, kWidth = 17;

struct Point {
  double x = 0, y = 0;
};
using Stroke = std::vector<Point>;

// The strokes of the digits 0 to 9. Coordinates run from (0, 0), the upper left corner, to (1, 1).
const std::array<Stroke, 10> kDigits{{
    {{.5, .04},
     {.27, .13},
     {.16, .35},
     {.16, .65},
     {.27, .87},
     {.5, .96},
     {.73, .87},
     {.84, .65},
     {.84, .35},
     {.73, .13},
     {.5, .04}},
    {{.32, .24}, {.55, .05}, {.55, .95}},
    {{.2, .26}, {.3, .1}, {.5, .04}, {.7, .1}, {.78, .27}, {.7, .45}, {.2, .94}, {.82, .94}},
    {{.22, .14},
     {.4, .05},
     {.62, .08},
     {.74, .22},
     {.66, .4},
     {.44, .48},
     {.68, .55},
     {.8, .72},
     {.68, .9},
     {.42, .95},
     {.2, .85}},
    {{.66, .95}, {.66, .05}, {.16, .66}, {.86, .66}},
    {{.76, .06}, {.3, .06}, {.26, .45}, {.5, .4}, {.72, .5}, {.79, .69}, {.69, .88}, {.45, .95}, {.22, .87}},
    {{.7, .07},
     {.46, .2},
     {.28, .45},
     {.23, .7},
     {.35, .9},
     {.55, .95},
     {.73, .85},
     {.77, .68},
     {.66, .53},
     {.48, .5},
     {.27, .62}},
    {{.18, .06}, {.82, .06}, {.42, .95}},
    {{.5, .47},
     {.3, .35},
     {.3, .15},
     {.5, .05},
     {.7, .15},
     {.7, .35},
     {.5, .47},
     {.25, .62},
     {.26, .84},
     {.5, .95},
     {.74, .84},
     {.75, .62},
     {.5, .47}},
    {{.3, .93},
     {.54, .8},
     {.72, .55},
     {.77, .3},
     {.65, .1},
     {.45, .05},
     {.27, .15},
     {.23, .32},
     {.34, .47},
     {.52, .5},
     {.73, .38}},
}};

// A source of random numbers. The distributions of std differ between standard libraries, so this class makes numbers
// directly from the generator's bits.
class Chance {
 public:
  explicit Chance(uint64_t seed) : bits_(seed) {}
  double between(double low, double high) {
    return low + (high - low) * (static_cast<double>(bits_() >> 11U) * 0x1p-53);
  }
  int digit() { return static_cast<int>(bits_() % kDigits.size()); }

 private:
  std::mt19937_64 bits_;
};

// Returns a stroke with random distortions, as handwriting has them. Its coordinates are in pixels.
Stroke written(const Stroke& stroke, Chance& chance) {
  const double turn = chance.between(-0.25, 0.25), slant = chance.between(-0.25, 0.25);
  const double width = kWidth * chance.between(0.7, 1.1), height = kHeight * chance.between(0.8, 1.1);
  const Point middle{kSide / 2.0 + chance.between(-2, 2), kSide / 2.0 + chance.between(-2, 2)};
  Stroke result;
  for (const auto& point : stroke) {
    const double y = (point.y - 0.5) * height + chance.between(-0.6, 0.6);
    const double x = (point.x - 0.5) * width + chance.between(-0.6, 0.6) - slant * y;
    result.push_back(
        {middle.x + std::cos(turn) * x - std::sin(turn) * y, middle.y + std::sin(turn) * x + std::cos(turn) * y});
  }
  return result;
}

double distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double along = ((p.x - a.x) * dx + (p.y - a.y) * dy) / std::max(dx * dx + dy * dy, 1e-9);
  const double t = std::clamp(along, 0.0, 1.0);
  return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

void draw(const Stroke& stroke, double thickness, uint8_t* pixels) {
  for (int row = 0; row < kSide; ++row) {
    for (int column = 0; column < kSide; ++column) {
      double nearest = kSide;
      for (size_t i = 1; i < stroke.size(); ++i)
        nearest = std::min(nearest, distance({column + 0.5, row + 0.5}, stroke[i - 1], stroke[i]));
      *pixels++ = static_cast<uint8_t>(255 * std::clamp(thickness + 0.5 - nearest, 0.0, 1.0));
    }
  }
}

}  // namespace

Images draw_digits(int64_t count, uint64_t seed) {
  Images images{at::empty({count, kSide, kSide}, at::kByte), at::empty({count}, at::kLong)};
  auto* pixels = images.pixels.mutable_data_ptr<uint8_t>();
  auto* labels = images.labels.mutable_data_ptr<int64_t>();
  Chance chance(seed);
  for (int64_t i = 0; i < count; ++i, pixels += kSide * kSide) {
    labels[i] = chance.digit();
    const auto stroke = written(kDigits[static_cast<size_t>(labels[i])], chance);
    draw(stroke, chance.between(0.7, 1.5), pixels);
  }
  return images;
}

}  // namespace images
