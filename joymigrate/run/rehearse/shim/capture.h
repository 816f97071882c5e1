/* Captured graphs: see capture.c. */
#ifndef JOY_CAPTURE_H
#define JOY_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

enum { /* as the published header of the runtime's error codes names them */
  JOY_UNJOINED = 107025, JOY_MODEL_CAPTURED, JOY_CAPTURED, JOY_EVENT_CAPTURED,
  JOY_NOT_CAPTURED = 107029, JOY_MODE_REFUSES = 107030, JOY_CONFLICT = 107032,
  JOY_NO_GROUP = 107033,
};

void **joy_stream_lane(void *stream); /* stream.c: where a stream keeps its part of a capture */
/* 0, or the code of a refusal because `stream` is being captured; the capture is then void. */
int joy_capture_refuse(void *stream, int code, const char *what);
/* The same of what a whole thread may not do while it captures (allocate, wait for the device). */
int joy_capture_refuse_thread(int code, const char *what);
/* Whether a stream is being captured; work on it is then to be kept as a node. */
int joy_capturing(void *stream);
void joy_capture_work(void *stream, int (*run)(void *), void *arg, size_t bytes);
void joy_capture_save(void *at, size_t bytes); /* before something is written while capturing */
void joy_capture_record(void **kept, void *stream); /* an event; frees and makes what it keeps */
void joy_capture_wait(void *stream, void *kept);

#endif
