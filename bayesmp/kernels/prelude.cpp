// What the text of the equations (text.py) needs beside arithmetic, in forms that a compiler can vectorise.
#include <stdint.h>
#include <string.h>
#define INLINE static inline __attribute__((always_inline))
#define sqrtf __builtin_sqrtf
#define fabsf __builtin_fabsf
#define expf exponential

INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }

// e^x with a relative error of 2e-7; 0 below -87, where the result would lose its digits. NaN goes through.
INLINE float exponential(float x) {
  float y = x < -87.0f ? -87.0f : x;
  y = 88.0f < y ? 88.0f : y;
  float shifted = y * 1.44269504f + 12582912.0f;  // y / log 2 rounded to an integer n, which is in the lowest bits
  float n = shifted - 12582912.0f, r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, 4);
  bits = (bits << 23) + 0x3f800000u;  // 2^n
  float scale;
  memcpy(&scale, &bits, 4);
  return x < -87.0f ? 0.0f : p * scale;
}
