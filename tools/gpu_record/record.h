/* What all parts of the recorder share: lines of the record, and the settings of the pretended machine.
 *
 * A line is a JSON object. It is built in a buffer of the thread and written in one piece:
 *
 *     line_begin("cudaMalloc");
 *     line_integer("bytes", size);
 *     line_end();
 *
 * Nothing but the functions of the libraries themselves and `gpu_record_*` is visible outside the shared object.
 */
#ifndef GPU_RECORD_RECORD_H
#define GPU_RECORD_RECORD_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Starts a line about a call of a library's function: its name, the thread, its device, and MXNet's operator. */
void line_begin(const char *call);
void line_integer(const char *key, long long value);
void line_string(const char *key, const char *value);
void line_integers(const char *key, const int *values, int count);
void line_object(const char *key); /* fields that follow belong to an object, until line_close */
void line_close(void);
void line_end(void);

/* Writes a line without fields and returns 0: what a function does whose arguments tell nothing. */
int line_alone(const char *call);

/* A copy of a text that lives as long as the process; equal texts give the same pointer. */
const char *keep_text(const char *text);

/* The pretended machine. */
int gpu_count(void);
int compute_capability(void); /* 70: Volta */
size_t gpu_memory(void);      /* bytes of each GPU */
extern __thread int current_gpu;

/* The operator that MXNet's profiler says this thread runs, or NULL. */
const char *current_operator(void);

/* Makes what a library hands out as a handle: zeroed memory that nothing but the recorder reads. */
int make_handle(void **handle);

/* Values of a small copy to the host; see gpu_record_deliver. */
void deliver_row(void *destination, size_t first_float, size_t bytes);
int delivers(size_t bytes);

#pragma GCC visibility pop

/* Functions whose arguments matter to nobody: recorded, not recorded, and refused. */
#define RECORDED(name) \
  int name(void) { return line_alone(#name); }
#define ACCEPTED(name) \
  int name(void) { return 0; }
#define CUDA_NOT_SUPPORTED 801 /* cudaErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED */
#define REFUSED(name)          \
  int name(void) {             \
    line_alone(#name);         \
    return CUDA_NOT_SUPPORTED; \
  }

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof *(array)))

#endif
