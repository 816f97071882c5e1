// The bounded text functions of the chip's C library that the graph interface calls.
#include "joy.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Writes at most `count` characters and a zero into `size` bytes; -1 where they do not fit.
JOY_PUBLIC int vsnprintf_s(char *text, size_t size, size_t count, const char *format,
                           va_list values) {
  size_t room = count < size ? count + 1 : size;
  int length = room ? vsnprintf(text, room, format, values) : -1;
  return length < 0 || (size_t)length >= room ? -1 : length;
}

JOY_PUBLIC int snprintf_s(char *text, size_t size, size_t count, const char *format, ...) {
  va_list values;
  va_start(values, format);
  int length = vsnprintf_s(text, size, count, format, values);
  va_end(values);
  return length;
}

JOY_PUBLIC int strcpy_s(char *text, size_t size, const char *from) {
  size_t length = strlen(from);
  if (length >= size) return 34;  // ERANGE
  memcpy(text, from, length + 1);
  return 0;
}

JOY_PUBLIC int memcpy_s(void *to, size_t size, const void *from, size_t count) {
  if (count > size) return 34;
  memcpy(to, from, count);
  return 0;
}
