/* fp16 and bf16 in plain integers: compilers before gcc 12 have no _Float16 on x86. */
#include "joy.h"

#include <string.h>

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

float joy_bf16_to_float(uint16_t brain) { return float_of((uint32_t)brain << 16); }

uint16_t joy_float_to_bf16(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* quiet NaN */
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest even */
}

float joy_half_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | rest << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | rest << 13);
  float tiny = (float)rest * (1.0f / 16777216.0f); /* rest * 2^-24 */
  return sign ? -tiny : tiny;
}

uint16_t joy_float_to_half(float value) {
  uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds above 65504 */
  if (size >= 0x38800000) {
    uint32_t rounded = size + 0xfff + (size >> 13 & 1) - 0x38000000;
    return (uint16_t)(sign | rounded >> 13);
  }
  /* Subnormal: adding 0.5 lets the float unit round to a multiple of 2^-24. */
  float shifted = float_of(size) + 0.5f;
  return (uint16_t)(sign | (bits_of(shifted) - bits_of(0.5f)));
}
